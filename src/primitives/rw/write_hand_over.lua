-- Moves the last write acquisition straight to another write hold of the same client, with a lease of its own; nothing is
-- published. Not while the holder also reads. Safe to run twice: the second run finds the new hold in place.
-- KEYS   lock
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold, channel
-- Reply  handed | handed before: the new hold was there already | deeper, count: not at its last acquisition, or reading;
--        nothing changed | gone: there is no such hold
return serve(function(k, a)
  local lock, id, lease, heir = KEYS[k + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5]
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
  if count ~= '1' or redis.call('HLEN', lock) ~= 2 then
    return 'deeper ' .. count
  end
  -- In this order: should the first be refused (out of memory), the lock is still where it was. So it is where one of the
  -- others is not allowed; with two writers the heir would take it for its own.
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
    redis.call('HSET', lock, 'mode', 'write')
    redis.call('PEXPIRE', lock, lease)
    error(done)
  end
  return 'handed'
end)
