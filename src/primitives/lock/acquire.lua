-- Takes the lock, or moves its count to the count wanted. Safe to run twice: the second run finds the count in place.
-- KEYS   lock
-- ARGV   nonce, hold id, lease ms, count wanted, 'again' if a hold must be there already else 'first', channel
-- Reply  granted, count | lost: `again`, but there is no hold | busy, ms left (-1: no end), hold id | conflict: not a lock
return serve(function(k, a)
  local lock, id, lease, wanted = KEYS[k + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local again = ARGV[a + 5] == 'again'
  if not again and redis.call('EXISTS', lock) == 0 then
    redis.call('HINCRBY', lock, id, wanted)
    local ends = redis.pcall('PEXPIRE', lock, lease)
    if ends ~= 1 then -- not allowed: a lock without end would stay for ever if its client went away now
      redis.call('DEL', lock)
      error(ends)
    end
    return 'granted ' .. wanted
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
    return string.format('busy %.0f ', redis.call('PTTL', lock)) .. theirs
  end
  if wanted ~= count then
    redis.call('HINCRBY', lock, id, wanted - count)
  end
  -- Written even where it changes nothing, so that WAIT has something of this connection to wait for.
  local left = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, left > tonumber(lease) and left or lease)
  return 'granted ' .. wanted
end)
