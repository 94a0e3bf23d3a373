-- Creates the latch with this count, unless there is one. Count zero needs no key: without a latch all may pass. Runs once.
-- KEYS   latch, receipt
-- ARGV   nonce, number of the request, ms that the receipt lasts, count, publish command ('': publish nothing), channel
-- Reply  granted | held: there is a latch | conflict: the key is not a latch
return serve(function(k, a)
  local latch = KEYS[k + 1]
  return once(KEYS[k + 2], a, function()
    local count = count_of(latch)
    if count ~= nil then
      return count and 'held' or 'conflict'
    elseif ARGV[a + 4] == '0' then
      return 'granted'
    end
    return 'granted', '1', function()
      redis.call('SET', latch, ARGV[a + 4])
    end
  end)
end)
