-- Says who holds the lock. Changes nothing.
-- KEYS   lock, channel
-- ARGV   nonce, (unused) x 4
-- Reply  held, {hold id, count, ms left (-1: no end)} | free | conflict: not a lock
return serve(function(k)
  local lock = KEYS[k + 1]
  if redis.call('EXISTS', lock) == 0 then
    return 'free'
  end
  local id, count = holder(lock)
  if not id then
    return 'conflict'
  end
  return 'held', { id, count, redis.call('PTTL', lock) }
end)
