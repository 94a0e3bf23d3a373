-- Changes the number of free permits. Runs once: the receipt has the reply, also of a request that changed nothing.
-- KEYS   semaphore, receipt
-- ARGV   nonce, number of the request, ms that the receipt lasts, a number of permits, publish command ('': publish nothing), channel,
--        'new': so many, unless there is a semaphore; 'more': adds so many, also to none; 'back': the same, but not to none;
--        'all': removes all that are free
-- Reply  granted, the number of permits that were free | held: `new`, and there is a semaphore | gone: `back`, and there is none
--        conflict: not a semaphore
return serve(function(k, a)
  local said = redis.call('GET', KEYS[k + 2])
  if said then
    return said
  end
  local free, permits, how = count_of(KEYS[k + 1]), tonumber(ARGV[a + 4]), ARGV[a + 7]
  if free == false then
    return 'conflict'
  end
  local reply = string.format('granted %.0f', free or 0)
  if free and how == 'new' then
    reply = 'held'
  elseif not free and how == 'back' then
    reply = 'gone'
  elseif how ~= 'all' then
    change(k, a, free, permits, reply, ARGV[a + 5])
    return reply
  elseif free and free > 0 then
    change(k, a, free, -free, reply, '')
    return reply
  end
  redis.call('SET', KEYS[k + 2], reply, 'PX', ARGV[a + 3])
  return reply
end)
