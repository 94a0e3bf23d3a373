-- Returns the permits of a hold that no caller has seen. Safe to run twice. If the server runs its acquisition later, that takes none.
-- KEYS   semaphore, receipt
-- ARGV   nonce, hold id, ms that the receipt lasts, number of its permits (0: perhaps it was not granted, so only the receipt counts), publish
--        command ('': publish nothing), channel
-- Reply  released | gone: they were not taken, or there is no semaphore | conflict: not a semaphore
return serve(function(k, a)
  local taken, free = tonumber(redis.call('GET', KEYS[k + 2]) or ARGV[a + 4]) or 0, count_of(KEYS[k + 1])
  if free and taken > 0 then
    change(k, a, free, taken, 'void', ARGV[a + 5])
    return 'released'
  end
  redis.call('SET', KEYS[k + 2], 'void', 'PX', ARGV[a + 3])
  return free == false and 'conflict' or 'gone'
end)
