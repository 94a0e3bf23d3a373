-- Returns the holder of the lock. Changes nothing.
-- KEYS   lock
-- ARGV   nonce, (unused) x 4, channel
-- Reply  held, count, ms left (-1: never expires), hold id | free | conflict: not a lock
return serve(function(k)
  local lock = KEYS[k + 1]
  if redis.call('EXISTS', lock) == 0 then
    return 'free'
  end
  local id, count = holder(lock)
  if not id then
    return 'conflict'
  end
  return string.format('held %s %.0f ', count, redis.call('PTTL', lock)) .. id
end)
