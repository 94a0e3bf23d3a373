-- Acquires the lock with a token greater than all earlier ones, or sets the hold count to the wanted count. Safe to run twice: the
-- second run finds the count and the token already set. A nested acquisition has the token of the hold.
-- KEYS   lock, token
-- ARGV   nonce, hold id, lease ms, wanted count, 'again' to re-enter an existing hold, else 'first'
-- Reply  granted, token | lost: `again`, but there is no such hold | busy, ms left (-1: never expires), hold id
--        conflict: not a lock
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
    -- First, because it may fail: the value may not be a number, or may be the greatest one.
    redis.call('INCR', token)
    redis.call('HINCRBY', lock, id, wanted)
    local ends = redis.pcall('PEXPIRE', lock, lease)
    if ends ~= 1 then -- not permitted: a lock that never expires would stay forever if its client died now
      redis.call('DEL', lock)
      error(ends)
    end
    return 'granted ' .. token_of(token)
  end
  if wanted ~= count then
    redis.call('HINCRBY', lock, id, wanted - count)
  end
  -- Written even if it changes nothing, so that a later WAIT on this connection has a write to wait for.
  local left = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, left > tonumber(lease) and left or lease)
  return 'granted ' .. token_of(token)
end)
