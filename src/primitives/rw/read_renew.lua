-- Puts the end of a reader's lease off, never nearer. With lease 0 it only looks, but mends the lock's own end, which the
-- watchdog of a JVM may have put before ours. A lease that is over does not come back.
-- A longer lease than all who share the hold need bears a claim, a number of its own. When the one that asked for it has left, the
-- others take it back: the end comes nearer, to their lease, unless somebody has made another claim since. So this is safe to run
-- twice, and late.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, lease ms or 0, 1 to take back what was claimed else 0, claim or '', channel
-- Reply  kept, ms left | gone: there is no such hold, or its lease is over
return serve(function(k, a)
  local lock, lives = KEYS[k + 1], KEYS[k + 2]
  local is_over = redis.call('EXISTS', lives) == 0
  if is_over or redis.call('HEXISTS', lock, ARGV[a + 2]) == 0 then
    return 'gone'
  end
  local lease, claim = ARGV[a + 3], ARGV[a + 5]
  if ARGV[a + 4] ~= '1' then
    lives_for(lives, lease, claim)
  elseif redis.call('GET', lives) == claim then
    redis.call('PEXPIRE', lives, lease)
    if mode_of(lock) == 'read' and all_ours(lock) then
      redis.call('PEXPIRE', lock, longest_reader(lock))
    end
  else
    lasts(lives, lease)
  end
  local left = redis.call('PTTL', lives)
  lasts(lock, left)
  return string.format('kept %.0f', left)
end)
