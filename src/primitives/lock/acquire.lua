-- Takes the lock, or moves its count to the level wanted. Safe to run twice: the second run finds the count in place.
-- KEYS   lock, channel
-- ARGV   nonce, hold id, lease ms, level wanted, 'again' if a hold must be there already else 'first'
-- Reply  granted, level | lost: `again`, but there is no hold | busy, ms left (-1: no end) | conflict: not a lock
return serve(function(k, a)
  local lock, id, lease, level = KEYS[k + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local count = redis.call('HGET', lock, id)
  if not count then
    if ARGV[a + 5] == 'again' then
      return 'lost'
    end
    if redis.call('EXISTS', lock) == 1 then
      if not holder(lock) then
        return 'conflict'
      end
      return 'busy', redis.call('PTTL', lock)
    end
    redis.call('HINCRBY', lock, id, level)
    redis.call('PEXPIRE', lock, lease)
    return 'granted', level
  end
  if level ~= tonumber(count) then
    redis.call('HINCRBY', lock, id, level - count)
  end
  -- Written even where it changes nothing, so that WAIT has something of this connection to wait for.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
  return 'granted', level
end)
