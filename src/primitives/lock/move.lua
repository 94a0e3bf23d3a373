-- Before each script that hands a lock over: from the last acquisition of one hold to another of the same client, with a lease
-- of its own, all of it or nothing.

-- Why there is nothing to move: the answer of the script, or nil.
local function stays(lock, id, lease, heir)
  if redis.call('HEXISTS', lock, heir) == 1 then
    -- A late second run finds a hold that may have been given a longer lease meanwhile.
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

-- In this order: should the first be refused (out of memory), the lock is still where it was. So it is where one of the others is
-- not allowed; with two fields it would be no lock, and with two writers, of a lock with a `mode`, the heir would take it for its
-- own.
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
