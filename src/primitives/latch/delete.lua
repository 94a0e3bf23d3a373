-- Deletes the latch. The message is that of Redisson: its own waiters do not wake, those of leasehold look again, and pass. Runs once.
-- KEYS   latch, receipt
-- ARGV   nonce, number of the request, ms that the receipt lasts, (unused), publish command ('': publish nothing), channel
-- Reply  released | gone: there is no latch | conflict: the key is not a latch
return serve(function(k, a)
  local latch = KEYS[k + 1]
  return once(KEYS[k + 2], a, function()
    local count = count_of(latch)
    if not count then
      return count == nil and 'gone' or 'conflict'
    end
    return 'released', '1', function()
      redis.call('DEL', latch)
    end
  end)
end)
