-- Runs before each script that hands a lock over: from one hold, at its last acquisition, to another hold of the same client, with a
-- lease of its own. It does all of that or nothing.

-- Returns nil if the lock can be moved; else the reply of the script, which says why not. Fails if this user may not call HDEL, before
-- anything is changed.
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
  if count ~= '1' then
    return 'deeper ' .. count
  end
  redis.call('HDEL', lock, heir) -- there is no such field
end

-- If one of the commands is not permitted, the old hold still has the lock. With two fields the key would not be a lock. The key must not be
-- gone in between: while a cluster moves the slot, the old master would not make it again.
local function move(lock, id, lease, heir)
  redis.call('HINCRBY', lock, heir, '1')
  local done = redis.pcall('PEXPIRE', lock, lease)
  if done ~= 1 then
    redis.call('HDEL', lock, heir)
    error(done)
  end
  redis.call('HDEL', lock, id)
end
