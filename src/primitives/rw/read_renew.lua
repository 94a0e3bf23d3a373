-- Puts the end of a reader's lease off, never nearer. With lease 0 it only looks. Either way it mends both ends, the lock's and the
-- reader's own: a JVM that reads, or that has a multi-lock, may have brought them nearer. A lease that is over does not come back.
-- A longer lease than all who share the hold need bears a claim, a number of its own. When the one that asked for it has left, the
-- others take it back: the end comes nearer, to their lease, unless somebody has made another claim since. So this is safe to run
-- twice, and late.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, lease ms or 0, 1 to take back what was claimed else 0, claim or '', channel, ms that the reader has left
--        by its own count
-- Reply  kept, ms that were left before that, then whether a new reader would be let in now: yes | no: a writer waits | unknown
--        gone: there is no such hold, or its lease is over
return serve(function(k, a)
  local lock, lives = KEYS[k + 1], KEYS[k + 2]
  local left = redis.call('PTTL', lives)
  if left == -2 or redis.call('HEXISTS', lock, ARGV[a + 2]) == 0 then
    return 'gone'
  end
  local lease, claim, all = ARGV[a + 3], ARGV[a + 5], redis.call('PTTL', lock)
  if ARGV[a + 4] ~= '1' then
    lives_for(lives, lease, claim)
    lasts(lives, ARGV[a + 7])
  elseif redis.call('GET', lives) == claim then
    redis.call('PEXPIRE', lives, lease)
    if mode_of(lock) == 'read' and all_ours(lock) then
      redis.call('PEXPIRE', lock, longest_reader(lock))
    end
  else
    lasts(lives, lease)
  end
  lasts(lock, redis.call('PTTL', lives))
  -- No key of this script: while a cluster moves the slot, one that is not there would keep the reader from being renewed.
  local waits = redis.pcall('GET', mark_of(lock))
  local lets_in = type(waits) == 'table' and 'unknown' or waits and writes(waits) and 'no' or 'yes'
  return string.format('kept %.0f ', all == -1 and left or math.min(left, all)) .. lets_in
end)
