-- Runs before each script that hands a lock over: from one hold, at its last acquisition, to another hold of the same client, with a
-- lease of its own. It does all of that or nothing.

-- Returns nil if the lock can be moved; else the reply of the script, which says why not.
local function stays(lock, id, lease, heir)
  if redis.call('HEXISTS', lock, heir) == 1 then
    -- A late second run finds a hold whose lease may have been extended since.
    local left = redis.call('PTTL', lock)
    redis.call('PEXPIRE', lock, left > tonumber(lease) and left or lease)
    return 'handed before'
  end
  local count = redis.call('HGET', lock, id)
  if not count then
    return 'gone'
  end
  return count ~= '1' and 'deeper ' .. count or nil
end

-- The order matters. If the server refuses the first command (out of memory), the old hold still has the lock. The same is true if
-- one of the other commands is not permitted: then the first one is undone. With two fields the key would not be a lock. And a lock
-- with a `mode` would have two writers, and the new hold would consider it its own.
local function move(lock, id, lease, heir, mode)
  redis.call('HINCRBY', lock, heir, '1')
  local done = redis.pcall('PEXPIRE', lock, lease)
  if done ~= 1 then
    redis.call('HDEL', lock, heir)
    error(done)
  end
  done = redis.pcall('HDEL', lock, id)
  if done ~= 1 then
    redis.call('DEL', lock)
    redis.call('HINCRBY', lock, id, '1')
    if mode then
      redis.call('HSET', lock, 'mode', mode)
    end
    redis.call('PEXPIRE', lock, lease)
    error(done)
  end
end
