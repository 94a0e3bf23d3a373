-- Changes the number of permits. Runs once: an extra key has the reply, for longer than the request can be under way.
-- KEYS   semaphore, permits taken, receipt
-- ARGV   nonce, number of the request, ms that the receipt lasts, a number of permits, publish command ('': publish nothing), channel,
--        'new': so many, unless there is a semaphore; 'all': so many, free and taken; 'more': adds so many, also to none
-- Reply  granted | held: `new`, and there is a semaphore | conflict: not a semaphore
return serve(function(k, a)
  local semaphore, taken, receipt = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local change, publish, channel, how = tonumber(ARGV[a + 4]), ARGV[a + 5], ARGV[a + 6], ARGV[a + 7]
  local said = redis.call('GET', receipt)
  if said then
    return said
  end
  local free = free_permits(semaphore)
  if free == false then
    return 'conflict'
  end
  local reply = free and how == 'new' and 'held' or 'granted'
  if free then
    free = reap(semaphore, taken, free, clock(), publish, channel)
  end
  if free and how == 'all' then
    change = change - free - redis.call('ZCARD', taken)
  end
  redis.call('SET', receipt, reply, 'PX', ARGV[a + 3])
  if reply == 'held' then
    return reply
  end
  free = (free or 0) + change
  local done, why = pcall(function()
    if change > 0 and free > 0 and publish ~= '' then
      redis.call(publish, channel, string.format('%.0f', free))
    end
    add(semaphore, change)
  end)
  if not done then
    redis.call('DEL', receipt)
    error(why, 0)
  end
  return reply
end)
