-- Changes the number of permits. Runs once: an extra key has the reply, for longer than the request can be under way. The key is empty before
-- the change: if the server refuses the change, a second run tries it again. Without a semaphore, permits that are taken are of an earlier
-- one, whose key was deleted. They are lost.
-- KEYS   semaphore, permits taken, receipt
-- ARGV   nonce, number of the request, ms that the receipt lasts, a number of permits, publish command ('': publish nothing), channel,
--        'new': so many, unless there is a semaphore; 'all': so many, free and taken; 'more': adds so many, also to none
-- Reply  granted | held: `new`, and there is a semaphore | conflict: not a semaphore
return serve(function(k, a)
  local semaphore, taken, receipt = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local change, publish, channel, how = tonumber(ARGV[a + 4]), ARGV[a + 5], ARGV[a + 6], ARGV[a + 7]
  local said = redis.call('GET', receipt)
  if said and said ~= '' then
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
  redis.call('SET', receipt, reply == 'held' and reply or '', 'PX', ARGV[a + 3])
  if reply == 'held' then
    return reply
  end
  if not free and redis.call('ZCARD', taken) > 0 then
    redis.call('DEL', taken)
  end
  free = (free or 0) + change
  if change > 0 and free > 0 and publish ~= '' then
    redis.call(publish, channel, string.format('%.0f', free))
  end
  add(semaphore, change)
  redis.call('SET', receipt, reply, 'PX', ARGV[a + 3])
  return reply
end)
