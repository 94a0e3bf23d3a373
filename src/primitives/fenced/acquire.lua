-- Takes the lock with a token greater than all before, or moves its count to the count wanted. Safe to run twice: the second
-- run finds the count in place, and the token. Nested acquisitions have the token of the hold.
-- KEYS   lock, token
-- ARGV   nonce, hold id, lease ms, count wanted, 'again' if a hold must be there already else 'first', channel
-- Reply  granted, token | lost: `again`, but there is no hold | busy, ms left (-1: no end), hold id | conflict: not a lock
return serve(function(k, a)
  local lock, token, id, lease, wanted = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local count = redis.call('HGET', lock, id)
  if not count then
    if ARGV[a + 5] == 'again' then
      return 'lost'
    end
    if redis.call('EXISTS', lock) == 1 then
      local theirs = holder(lock)
      if not theirs then
        return 'conflict'
      end
      return string.format('busy %.0f ', redis.call('PTTL', lock)) .. theirs
    end
    -- First: it may fail, since the token is no number, or its last one.
    redis.call('INCR', token)
    redis.call('HINCRBY', lock, id, wanted)
    local ends = redis.pcall('PEXPIRE', lock, lease)
    if ends ~= 1 then -- not allowed: a lock without end would stay for ever if its client went away now
      redis.call('DEL', lock)
      error(ends)
    end
    return 'granted ' .. token_of(token)
  end
  if wanted ~= count then
    redis.call('HINCRBY', lock, id, wanted - count)
  end
  -- Written even where it changes nothing, so that WAIT has something of this connection to wait for.
  local left = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, left > tonumber(lease) and left or lease)
  return 'granted ' .. token_of(token)
end)
