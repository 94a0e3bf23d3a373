-- Moves the last acquisition straight to another hold of the same client, with a lease of its own; nothing is published.
-- Safe to run twice: the second run finds the new hold in place.
-- KEYS   lock, channel
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold
-- Reply  handed | deeper, count: not at its last acquisition, nothing changed | gone: there is no such hold
return serve(function(k, a)
  local lock, id, lease, heir = KEYS[k + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), ARGV[a + 5]
  local moved = redis.call('HEXISTS', lock, heir) == 1
  if not moved then
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
  -- A late second run finds a hold that may have been given a longer lease meanwhile.
  redis.call('PEXPIRE', lock, moved and math.max(redis.call('PTTL', lock), lease) or lease)
  return 'handed'
end)
