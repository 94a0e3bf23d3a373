-- Extends a reader's lease, never shortens it. With lease 0 it does not change that lease. In both cases it repairs the lease of the
-- lock itself, which the watchdog of a JVM may have shortened to less than the reader's. It does not renew a lease that has expired.
-- Several readers of one client may share a hold. If one of them needs a longer lease than the others, its request carries a claim, a
-- number of its own. When that reader has left, the others withdraw the claim: the lease becomes shorter again, unless there is another
-- claim since. So this is safe to run twice or late.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, lease ms or 0, 1 to withdraw the claim else 0, claim or '', channel
-- Reply  kept, ms left | gone: there is no such hold, or its lease has expired
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
