-- Counts down by one. At zero it wakes the waiters and deletes the latch. Runs once.
-- KEYS   latch, receipt
-- ARGV   nonce, number of the request, ms that the receipt lasts, (unused), publish command ('': publish nothing), channel
-- Reply  released, the count that is left | gone: there is no latch | conflict: the key is not a latch
return serve(function(k, a)
  local latch = KEYS[k + 1]
  return once(KEYS[k + 2], a, function()
    local count = count_of(latch)
    if not count then
      return count == nil and 'gone' or 'conflict'
    end
    local left = math.max(count - 1, 0)
    return string.format('released %.0f', left), left == 0 and '0', function()
      if left == 0 then
        redis.call('DEL', latch)
      else
        redis.call('DECR', latch)
      end
    end
  end)
end)
