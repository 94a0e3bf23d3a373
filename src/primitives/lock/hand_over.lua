-- Moves the last level straight to another hold of the same client, with a lease of its own; nothing is published.
-- Safe to run twice: the second run finds the new hold in place.
-- KEYS   lock, channel
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold
-- Reply  handed | deeper, count: not at its last level, nothing changed | gone: there is no such hold
return serve(function(k, a)
  local lock, id, lease, heir = KEYS[k + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5]
  if redis.call('HEXISTS', lock, heir) == 0 then
    local count = tonumber(redis.call('HGET', lock, id))
    if not count then
      return 'gone'
    end
    if count ~= 1 then
      return 'deeper', count
    end
    -- In this order: should the first be refused (out of memory), the lock is still where it was.
    redis.call('HINCRBY', lock, heir, 1)
    redis.call('HDEL', lock, id)
  end
  redis.call('PEXPIRE', lock, lease)
  return 'handed'
end)
