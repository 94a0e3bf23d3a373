-- Puts the end of a reader's lease off, never nearer. With lease 0 it only looks, but mends the lock's own end, which the
-- watchdog of a JVM may have put before ours. A lease that is over does not come back.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, lease ms or 0, (unused) x 2, channel
-- Reply  kept, ms left | gone: there is no such hold, or its lease is over
return serve(function(k, a)
  local lock, lives = KEYS[k + 1], KEYS[k + 2]
  local is_over = redis.call('EXISTS', lives) == 0
  if is_over or redis.call('HEXISTS', lock, ARGV[a + 2]) == 0 then
    return 'gone'
  end
  lasts(lives, ARGV[a + 3])
  local left = redis.call('PTTL', lives)
  lasts(lock, left)
  return string.format('kept %.0f', left)
end)
