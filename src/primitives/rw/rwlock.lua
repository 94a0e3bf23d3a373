-- Before each script of the read-write lock. The lock is a hash: `mode` is `read` or `write`, `id` counts a reader's
-- acquisitions, `id:write` the writer's. A reader's lease is the string `{lock}:id:rwlock_timeout:1`, the writer's that of
-- the hash, which lives as long as the longest lease. Redisson keeps one such string for each acquisition; of ours, which end
-- together, it reads but the first, and that is enough for it.

-- free | read | write | conflict: not such a lock. Raises WRONGTYPE where the key is not a hash.
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

-- A client of ours has a UUID of version 8, Redisson's are of version 4.
local function ours(id)
  return string.sub(id, 15, 15) == '8'
end

-- Somebody who does not know the mark has the lock.
local function foreign(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if field ~= 'mode' and not ours(field) then
      return true
    end
  end
  return false
end

-- Leaves or renews the mark of a refused waiter for three seconds, unless another waiter's is there: all clients of ours leave the
-- next turn to it. `turn` leaves it, `late` only where all holders know it.
local function mark_turn(lock, mark, id, how)
  if how == 'late' and foreign(lock) then
    return
  end
  local waits = redis.call('GET', mark)
  if not waits or waits == id then
    redis.call('SET', mark, id, 'PX', '3000')
  end
end

-- Before the number of a reader's expiry keys.
local function lives_of(lock, id)
  return (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':' .. id .. ':rwlock_timeout:'
end

-- How long a reader has left; not above 0 if its lease is over.
local function left_of(lock, id, count)
  local longest, lives = -2, lives_of(lock, id)
  for level = ours(id) and 1 or count, 1, -1 do
    longest = math.max(longest, redis.call('PTTL', lives .. level))
  end
  return longest
end

-- Who has it: the writer, else a reader.
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

-- How long the last of the readers but `skip` has left, not above 0 where there is none. What is left of our dead ones is swept
-- away; Redisson's are left alone: its multi-lock has readers whose lease is that of the hash.
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

-- The lease of a reader of Redisson's multi-lock is that of the hash.
local function all_ours(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if field ~= 'mode' and not ours(field) then
      return false
    end
  end
  return true
end

-- Moves an end to so many ms from now, but never nearer.
local function lasts(key, lease)
  local left = redis.call('PTTL', key)
  if tonumber(lease) > left then
    redis.call('PEXPIRE', key, lease)
  end
end

-- The same for a reader's expiry key, which is made if it is not there. Readers that share it note who asked for a longer lease than
-- they all need, so that it can be taken back: nobody else reads that value.
local function lives_for(lives, lease, claim)
  local left = redis.call('PTTL', lives)
  if left > -2 and claim == '' then
    lasts(lives, lease)
  else
    redis.call('SET', lives, claim == '' and '1' or claim, 'PX', math.max(left, tonumber(lease)))
  end
end

-- How many were told; nothing is published where the client has no such command.
local function publish(command, channel, what)
  return command == '' and 0 or redis.call(command, channel, what)
end
