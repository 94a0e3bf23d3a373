-- Moves the last write acquisition straight to another write hold of the same client, with a lease of its own; nothing is
-- published. Not while the holder also reads. Safe to run twice: the second run finds the new hold in place.
-- KEYS   lock
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold, channel
-- Reply  handed | handed before: the new hold was there already | deeper, count: not at its last acquisition, or reading;
--        nothing changed | gone: there is no such hold
return serve(function(k, a)
  local lock, id, lease, heir = KEYS[k + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5]
  local moved = redis.call('HEXISTS', lock, heir) == 1
  if not moved then
    local count = redis.call('HGET', lock, id)
    if not count then
      return 'gone'
    end
    if count ~= '1' or redis.call('HLEN', lock) ~= 2 then
      return 'deeper ' .. count
    end
    -- In this order: should the first be refused (out of memory), the lock is still where it was.
    redis.call('HINCRBY', lock, heir, '1')
    redis.call('HDEL', lock, id)
  end
  -- A late second run finds a hold that may have been given a longer lease meanwhile.
  local left = moved and redis.call('PTTL', lock) or 0
  redis.call('PEXPIRE', lock, left > tonumber(lease) and left or lease)
  return moved and 'handed before' or 'handed'
end)
