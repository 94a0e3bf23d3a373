-- Runs before each script of the read-write lock. The lock is a hash: `mode` is `read` or `write`, `id` counts the acquisitions of a
-- reader, `id:write` those of the writer. The lease of a reader is that of the string `{lock}:id:rwlock_timeout:1`. The lease of the
-- writer is that of the hash, which lasts as long as the longest lease. Redisson keeps one such string for each acquisition. A leasehold
-- client keeps only the first, because its acquisitions end together; Redisson works with that.
-- A hold that was released before its `min_hold` was over rests until then: its field becomes `id:rest` or `id:write:rest`, so no late
-- request can renew it, and a second release finds it. A reader that rests has an expiry key as any other. So has a writer that rests
-- beside reads of its owner, which may last longer; one that rests alone has the lease of the hash.

-- Returns free, read, write, or conflict (not a read-write lock). Raises WRONGTYPE if the key is not a hash.
local function mode_of(lock)
  local mode = redis.call('HGET', lock, 'mode')
  if mode == 'read' or mode == 'write' then
    return mode
  end
  return not mode and redis.call('EXISTS', lock) == 0 and 'free' or 'conflict'
end

-- The field of a hold that was released early.
local function rest_of(id)
  return id .. ':rest'
end

-- This and the next look at the last byte first: most fields are those of readers and end in a digit, and string.sub creates a string.
local function is_rest(id)
  return string.byte(id, -1) == 116 and string.sub(id, -5) == ':rest' -- 't'
end

local function writes(id)
  local last = string.byte(id, -1)
  return last == 101 and string.sub(id, -6) == ':write' or last == 116 and string.sub(id, -11) == ':write:rest' -- 'e', 't'
end

-- A leasehold client has a UUID of version 8; Redisson's are of version 4.
local function ours(id)
  return string.byte(id, 15) == 56 -- '8'
end

-- True if a holder is not a leasehold client. Such a holder does not know the mark, and may have no lease but that of the hash, as the
-- readers of Redisson's multi-lock.
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

-- The lock's name as the names of its other keys have it: in a cluster, they are in the same slot.
local function tagged(lock)
  return string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
end

-- The key of the mark of a waiter.
local function mark_of(lock)
  return 'leasehold_rwlock_waits:' .. tagged(lock)
end

-- The name of one of a reader's expiry keys. `level` is a string for the first one, because formatting a number takes time.
local function lives_of(tag, id, level)
  return tag .. ':' .. id .. ':rwlock_timeout:' .. level
end

-- Fails before the hold is changed if this user may not call HDEL, or if a cluster moves the slot and this server cannot create the expiry
-- key of a hold that rests. Then the hold keeps its lease until the slot has moved. After it, the server refuses no command of this script
-- for lack of memory.
local function can_rest(lock, id, has_key)
  redis.call('HDEL', lock, rest_of(id)) -- there is no such field
  if has_key then
    redis.call('EXISTS', lives_of(tagged(lock), rest_of(id), '1'))
  end
end

-- The time left on the lease of a reader; 0 or less if it has expired.
local function left_of(tag, id, count)
  local longest = redis.call('PTTL', lives_of(tag, id, '1'))
  for level = 2, ours(id) and 1 or count do
    longest = math.max(longest, redis.call('PTTL', lives_of(tag, id, level)))
  end
  return longest
end

-- True if a writer rests beside reads of its owner and its time is over. Names two keys: while a cluster moves the slot, EXISTS of a key
-- that has not arrived yet then fails, and the key does not look as if it had expired.
local function is_over(lock, writer)
  return is_rest(writer) and redis.call('HLEN', lock) > 2 and redis.pcall('EXISTS', lock, lives_of(tagged(lock), writer, '1')) == 1
end

-- The time left on the lease of the writer. It is 0 in the last millisecond.
local function left_of_writer(lock, writer)
  local left = is_rest(writer) and left_of(tagged(lock), writer, 1) or -2
  return left >= 0 and left or redis.call('PTTL', lock)
end

-- The field of the writer; nil if there is none. If it rests and is over, this first turns the lock into a read lock.
local function writer_of(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if writes(field) then
      if not is_over(lock, field) then
        return field
      end
      redis.call('HDEL', lock, field) -- first, because the server never refuses it for lack of memory, and after it not the next one
      redis.call('HSET', lock, 'mode', 'read')
      return nil
    end
  end
end

-- As mode_of, but `read` if the writer rests and is over. Else, for `write`, also the field of the writer.
local function mode_now(lock)
  local mode = mode_of(lock)
  if mode ~= 'write' then
    return mode
  end
  local writer = writer_of(lock)
  if writer then
    return mode, writer
  end
  -- If an earlier request removed the writer and was not permitted to change the mode, readers are left beside the mode `write`.
  return redis.call('HLEN', lock) > 2 and 'read' or mode_of(lock)
end

-- A holder: the writer, else a reader of this client that does not rest, else any reader. A failover may have brought that reader back:
-- the client releases it again once it is named.
local function someone(lock, client)
  local found, own = '', false
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if writes(field) then
      return field
    end
    if field ~= 'mode' then
      found = field
      own = own or string.find(field, client, 1, true) == 1 and not is_rest(field) and field
    end
  end
  return own or found
end

-- What an id begins with: the client.
local function client_of(id)
  return string.sub(id, 1, 37)
end

-- The longest time left on the lease of a reader other than `skip`; 0 or less if there is none. And whether one of them does not rest.
-- Removes expired readers of leasehold clients. Keeps those of Redisson: readers of its multi-lock have the lease of the hash.
local function longest_reader(lock, skip)
  local longest, is_read, tag, fields = -2, false, tagged(lock), redis.call('HGETALL', lock)
  for n = 1, #fields, 2 do
    local id, count = fields[n], tonumber(fields[n + 1])
    if count and id ~= skip and not writes(id) then
      local left = left_of(tag, id, count)
      if left < 0 and ours(id) then
        redis.call('HDEL', lock, id)
      end
      longest, is_read = math.max(longest, left), is_read or left > 0 and not is_rest(id)
    end
  end
  return longest, is_read
end

-- Extends the time after which a key expires to `lease` ms from now, but never shortens it.
local function lasts(key, lease)
  local left = redis.call('PTTL', key)
  if tonumber(lease) > left then
    redis.call('PEXPIRE', key, lease)
  end
end

-- The same for a reader's expiry key, which this creates if it does not exist. Returns the ms left.
local function lives_for(lives, lease)
  local left = redis.call('PTTL', lives)
  local longer = tonumber(lease) > left and lease or left
  if left == -2 then
    redis.call('SET', lives, '1', 'PX', longer)
  elseif longer == lease then
    redis.call('PEXPIRE', lives, lease)
  end
  return longer
end

-- Returns the number of clients that received the message. Publishes nothing if there is no command.
local function publish(command, channel, what)
  return command == '' and 0 or redis.call(command, channel, what)
end
