-- Returns permits of a hold, all but so many, and removes the mark of its waiter. Safe to run twice. Publishes the number of free permits.
-- KEYS   semaphore, permits taken, the mark
-- ARGV   nonce, hold id, (unused), number of permits to keep, publish command ('': publish nothing), channel
-- Reply  released, number of clients that received the message | gone, the same: the permits were not there, or their time was over, or there is
--        no semaphore
--        conflict: not a semaphore
return serve(function(k, a)
  local semaphore, taken, mark = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local publish, channel, now = ARGV[a + 5], ARGV[a + 6], clock()
  local free = free_permits(semaphore)
  if free == false then
    return 'conflict'
  end
  local taken_now, permit = permits_of(ARGV[a + 2])
  local back, told, first, keep = {}, 0, ends_of(taken, permit(0)), tonumber(ARGV[a + 4])
  for n = keep, taken_now - 1 do
    if n == 0 and first or n > 0 and ends_of(taken, permit(n)) then
      back[#back + 1] = permit(n)
    elseif keep > 0 then
      break -- an earlier release of a part has returned the rest
    end
  end
  free, told = give_back(semaphore, taken, free, back, publish, channel)
  if keep == 0 and redis.call('GET', mark) == string.sub(ARGV[a + 2], 1, 28) then
    if #back == 0 and free and free > 0 and publish ~= '' then
      told = redis.call(publish, channel, string.format('%.0f', free))
    end
    redis.call('DEL', mark)
  end
  return string.format('%s %.0f', free and first and first > now and 'released' or 'gone', told)
end)
