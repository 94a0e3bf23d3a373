-- Takes all permits of a hold, or none. Safe to run twice: the second run finds the first of them, which is released last. While another
-- waiter has a mark, it takes none. A waiter that was refused several times leaves a mark: released permits are then left to it. So small requests do not starve a large one.
-- KEYS   semaphore, permits taken, the mark
-- ARGV   nonce, hold id, lease ms, (unused), 'turn' or 'late' to leave a mark, else another word; channel, publish command ('': publish
--        nothing)
-- Reply  granted | busy, ms until a permit or the mark ends (-1: unknown). Also if there is no semaphore | conflict: not a semaphore
return serve(function(k, a)
  local semaphore, taken, mark = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local how, channel, publish, now = ARGV[a + 5], ARGV[a + 6], ARGV[a + 7], clock()
  local free = free_permits(semaphore)
  if not free then
    return free == nil and 'busy -1 ' or 'conflict'
  end
  free = reap(semaphore, taken, free, now, publish, channel)
  local wanted, permit = permits_of(ARGV[a + 2])
  local id, ends, missing = string.sub(ARGV[a + 2], 1, 28), now + tonumber(ARGV[a + 3]), 0
  local waiter, known = redis.call('GET', mark), ends_of(taken, permit(0))
  if not known and (wanted > free or (waiter and waiter ~= id)) then
    local first = redis.call('ZRANGE', taken, '0', '0', 'WITHSCORES')[2]
    local till = first and tonumber(first) < 922337203685477 and tonumber(first) - now or -1
    if waiter and waiter ~= id then
      local left = redis.call('PTTL', mark)
      till = till < 0 and left or math.min(till, left)
    elseif (waiter or how == 'turn' or how == 'late') and wanted <= free + redis.call('ZCARD', taken) then
      redis.call('SET', mark, id, 'PX', '3000')
    end
    return string.format('busy %.0f ', till)
  end
  for n = 0, known and -1 or wanted - 1 do
    missing = missing + (ends_of(taken, permit(n)) and 0 or 1)
  end
  -- As in Redisson: if the semaphore expires, so do they. What may be refused comes before the first change.
  local lasts = redis.call('PTTL', semaphore)
  if lasts >= 0 then
    redis.call('ZADD', taken, 'XX', '0', NO_PERMIT)
    redis.call('PEXPIRE', taken, lasts)
  end
  -- Others that the mark kept out may take the rest.
  if waiter == id then
    if free > missing and publish ~= '' then
      redis.call(publish, channel, string.format('%.0f', free - missing))
    end
    redis.call('DEL', mark)
  end
  local function take()
    for n = 0, wanted - 1 do
      redis.call('ZADD', taken, known and 'XX' or 'NX', string.format('%.0f', ends), permit(n))
    end
  end
  if missing > 0 then
    add_and(semaphore, -missing, take)
  elseif known < ends then
    take()
  end
  if lasts >= 0 then
    redis.call('PEXPIRE', taken, lasts)
  end
  return 'granted'
end)
