-- Extends a reader's lease, never shortens it. With lease 0 it only checks the hold, with `-ms:left` the lease becomes just as long, if what
-- is left is as the client has seen it. In all cases it repairs two leases, that of the
-- lock and that of the reader: a JVM that reads, or that has a multi-lock, may have shortened them. It does not renew a lease that has
-- expired.
-- Several readers of one client may share a hold. If one of them needs a longer lease than the others, its request carries a claim, a
-- number of its own. When that reader has left, the others withdraw the claim: the lease becomes shorter again, unless there is another
-- claim since. So this is safe to run twice or late.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, lease ms, 0, or -ms:left, 1 to withdraw the claim else 0, claim or '', channel, ms left on the lease by the
--        reader's own clock
-- Reply  kept, ms that were left before, then whether a new reader could enter now: yes | no: a writer waits | unknown
--        kept, ms left, later: the claim cannot be withdrawn yet, because the slot moves
--        gone: there is no such hold, or its lease has expired

-- False if another reader's expiry key has not arrived yet, while a cluster moves the slot. That reader must not look as if it had expired.
-- EXISTS of two keys fails then, of one it would not.
local function knows_all(lock)
  local tag = tagged(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if field ~= 'mode' and type(redis.pcall('EXISTS', lock, lives_of(tag, field, '1'))) == 'table' then
      return false
    end
  end
  return true
end

return serve(function(k, a)
  local lock, lives = KEYS[k + 1], KEYS[k + 2]
  local left = redis.call('PTTL', lives)
  if left == -2 or redis.call('HEXISTS', lock, ARGV[a + 2]) == 0 then
    return 'gone'
  end
  local lease, claim, needed, all = ARGV[a + 3], ARGV[a + 5], ARGV[a + 7], redis.call('PTTL', lock)
  local mode = mode_now(lock) -- JVMs that wait to read cannot see by themselves that a writer which rests is over
  local reads, holds = left, all -- the ms left on the two leases when this script has run
  local later, exactly = false, string.byte(lease) == 45 -- '-'
  if exactly then
    local needed, seen = string.match(lease, '(%d+):(%d+)')
    lease, exactly = needed, math.abs(left - seen) < 5000 -- else it is late, and another lease was set since
  end
  if ARGV[a + 4] ~= '1' and not exactly then
    local longer = tonumber(lease) > tonumber(needed) and lease or needed
    if claim ~= '' then
      reads = math.max(left, tonumber(longer))
      redis.call('PEXPIRE', lives, reads) -- the server never refuses it for lack of memory, and after it not the next one
      redis.call('SET', lives, claim, 'PX', reads)
    elseif tonumber(longer) > math.max(left, 0) then
      reads = tonumber(longer)
      redis.call('PEXPIRE', lives, longer)
    end
  else
    local claimed = exactly or redis.call('GET', lives) == claim
    later = claimed and not knows_all(lock)
    if claimed and not later then
      reads = tonumber(lease)
      redis.call('PEXPIRE', lives, lease)
      if mode == 'read' and not foreign(lock) then
        holds = longest_reader(lock)
        redis.call('PEXPIRE', lock, holds)
      end
    elseif tonumber(lease) > left then
      reads = tonumber(lease)
      redis.call('PEXPIRE', lives, lease)
    end
  end
  if reads > holds then
    redis.call('PEXPIRE', lock, reads)
  end
  -- Not one of KEYS: while a cluster moves the slot, a missing key would prevent the renewal.
  local waits = redis.pcall('GET', mark_of(lock))
  local lets_in = later and 'later' or type(waits) == 'table' and 'unknown' or waits and writes(waits) and 'no' or 'yes'
  return string.format('kept %.0f ', all == -1 and left or math.min(left, all)) .. lets_in
end)
