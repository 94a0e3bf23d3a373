-- Extends a reader's lease, never shortens it. With lease 0 it only checks the hold. It does not renew a lease that has expired. The lock
-- lasts for at least as long: a JVM that reads, or that has a multi-lock, may have shortened its lease.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, lease ms
-- Reply  kept, ms that were left before, then whether a new reader could enter now: yes | no: a writer waits | unknown
--        gone: there is no such hold, or its lease has expired
return serve(function(k, a)
  local lock, lives, lease = KEYS[k + 1], KEYS[k + 2], tonumber(ARGV[a + 3])
  local reads = redis.call('PTTL', lives)
  if reads == -2 or redis.call('HEXISTS', lock, ARGV[a + 2]) == 0 then
    return 'gone'
  end
  local all = redis.call('PTTL', lock)
  local left = all == -1 and reads or math.min(reads, all)
  mode_now(lock) -- JVMs that wait to read cannot see by themselves that a writer which rests is over
  if lease > math.max(reads, 0) then
    reads = lease
    redis.call('PEXPIRE', lives, ARGV[a + 3])
  end
  if reads > all then
    redis.call('PEXPIRE', lock, reads)
  end
  -- Not one of KEYS: while a cluster moves the slot, a missing key would prevent the renewal.
  local waits = redis.pcall('GET', mark_of(lock))
  local lets_in = type(waits) == 'table' and 'unknown' or waits and writes(waits) and 'no' or 'yes'
  return string.format('kept %.0f ', left) .. lets_in
end)
