-- Takes the lock, or moves its count to the count wanted. Safe to run twice: the second run finds the count in place.
-- KEYS   lock, channel
-- ARGV   nonce, hold id, lease ms, count wanted, 'again' if a hold must be there already else 'first'
-- Reply  granted, count | lost: `again`, but there is no hold | busy, {ms left (-1: no end), hold id} | conflict: not a lock
return serve(function(k, a)
  local lock, id, lease, wanted = KEYS[k + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local again = ARGV[a + 5] == 'again'
  if not again and redis.call('EXISTS', lock) == 0 then
    redis.call('HINCRBY', lock, id, wanted)
    redis.call('PEXPIRE', lock, lease)
    return 'granted', wanted
  end
  local count = redis.call('HGET', lock, id)
  if not count then
    if again then
      return 'lost'
    end
    local theirs = holder(lock)
    if not theirs then
      return 'conflict'
    end
    return 'busy', { redis.call('PTTL', lock), theirs }
  end
  if wanted ~= tonumber(count) then
    redis.call('HINCRBY', lock, id, wanted - count)
  end
  -- Written even where it changes nothing, so that WAIT has something of this connection to wait for.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
  return 'granted', wanted
end)
