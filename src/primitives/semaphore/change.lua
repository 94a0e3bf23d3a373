-- Changes the number of permits. Runs once. Without a semaphore, permits that are taken are of an earlier one, whose key was deleted. They are
-- lost.
-- KEYS   semaphore, permits taken, receipt
-- ARGV   nonce, number of the request, ms that the receipt lasts, a number of permits, publish command ('': publish nothing), channel,
--        'new': so many, unless there is a semaphore; 'all': so many, free and taken; 'more': adds so many, also to none
-- Reply  granted | held: `new`, and there is a semaphore | conflict: not a semaphore
return serve(function(k, a)
  local semaphore, taken, how = KEYS[k + 1], KEYS[k + 2], ARGV[a + 7]
  return once(KEYS[k + 3], a, function()
    local free, change = free_permits(semaphore), tonumber(ARGV[a + 4])
    if free == false then
      return 'conflict'
    end
    if free then
      free = reap(semaphore, taken, free, clock(), ARGV[a + 5], ARGV[a + 6])
    end
    if free and how == 'new' then
      return 'held'
    end
    local members = redis.call('ZCARD', taken)
    if free and how == 'all' then
      change = change - free - members
    end
    local is_old = not free and members > 0
    free = (free or 0) + change
    return 'granted', change > 0 and free > 0 and string.format('%.0f', free), function()
      if is_old then
        redis.call('DEL', taken)
      end
      add(semaphore, change)
    end
  end)
end)
