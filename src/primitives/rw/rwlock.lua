-- Runs before each script of the read-write lock. The lock is a hash: `mode` is `read` or `write`, `id` counts the acquisitions of a
-- reader, `id:write` those of the writer. The lease of a reader is that of the string `{lock}:id:rwlock_timeout:1`. The lease of the
-- writer is that of the hash, which lasts as long as the longest lease. Redisson keeps one such string for each acquisition. A leasehold
-- client keeps only the first, because its acquisitions end together; Redisson works with that.

-- Returns free, read, write, or conflict (not a read-write lock). Raises WRONGTYPE if the key is not a hash.
local function mode_of(lock)
  local mode = redis.call('HGET', lock, 'mode')
  if mode == 'read' or mode == 'write' then
    return mode
  end
  return not mode and redis.call('EXISTS', lock) == 0 and 'free' or 'conflict'
end

local function writes(id)
  return string.sub(id, -6) == ':write'
end

-- A leasehold client has a UUID of version 8; Redisson's are of version 4.
local function ours(id)
  return string.sub(id, 15, 15) == '8'
end

-- True if a holder does not know the mark, because it is not a leasehold client.
local function foreign(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if field ~= 'mode' and not ours(field) then
      return true
    end
  end
  return false
end

-- Sets or renews the mark of a refused waiter for three seconds, unless another waiter has a mark: all leasehold clients let the marked
-- waiter have the next turn. `turn` always sets it, `late` only if all holders know the mark. Returns the id of another waiter that has
-- the mark, if it keeps this one from leaving its own.
local function mark_turn(lock, mark, id, how)
  if how == 'late' and foreign(lock) then
    return
  end
  local waits = redis.call('GET', mark)
  if waits and waits ~= id then
    return waits
  end
  redis.call('SET', mark, id, 'PX', '3000')
end

-- The key of the mark of a waiter.
local function mark_of(lock)
  return 'leasehold_rwlock_waits:' .. (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}')
end

-- The beginning of the names of a reader's expiry keys, without their number.
local function lives_of(lock, id)
  return (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':' .. id .. ':rwlock_timeout:'
end

-- The time left on the lease of a reader; 0 or less if it has expired.
local function left_of(lock, id, count)
  local longest, lives = -2, lives_of(lock, id)
  for level = ours(id) and 1 or count, 1, -1 do
    longest = math.max(longest, redis.call('PTTL', lives .. level))
  end
  return longest
end

-- A holder: the writer, else a reader.
local function someone(lock)
  local found = ''
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if writes(field) then
      return field
    end
    found = field ~= 'mode' and field or found
  end
  return found
end

-- The longest time left on the lease of a reader other than `skip`; 0 or less if there is none. Removes expired readers of leasehold
-- clients. Keeps those of Redisson: readers of its multi-lock have the lease of the hash.
local function longest_reader(lock, skip)
  local longest, fields = -2, redis.call('HGETALL', lock)
  for n = 1, #fields, 2 do
    local id, count = fields[n], tonumber(fields[n + 1])
    if count and id ~= skip and not writes(id) then
      local left = left_of(lock, id, count)
      if left < 0 and ours(id) then
        redis.call('HDEL', lock, id)
      end
      longest = math.max(longest, left)
    end
  end
  return longest
end

-- True if all holders are leasehold clients. The lease of a reader of Redisson's multi-lock is that of the hash.
local function all_ours(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if field ~= 'mode' and not ours(field) then
      return false
    end
  end
  return true
end

-- Extends the time after which a key expires to `lease` ms from now, but never shortens it.
local function lasts(key, lease)
  local left = redis.call('PTTL', key)
  if tonumber(lease) > left then
    redis.call('PEXPIRE', key, lease)
  end
end

-- The same for a reader's expiry key, which this creates if it does not exist. The value of the key is the claim of the reader that
-- needs a longer lease than the others, so that the others can withdraw it. No other program reads that value.
local function lives_for(lives, lease, claim)
  local left = redis.call('PTTL', lives)
  if left > -2 and claim == '' then
    lasts(lives, lease)
  else
    redis.call('SET', lives, claim == '' and '1' or claim, 'PX', math.max(left, tonumber(lease)))
  end
end

-- Returns the number of clients that received the message. Publishes nothing if there is no command.
local function publish(command, channel, what)
  return command == '' and 0 or redis.call(command, channel, what)
end
