-- Returns the waiters. Changes nothing.
-- KEYS   lock, queue
-- ARGV   nonce, (unused) x 4, channel
-- Reply  held, then the hold ids, one per line, the next one first | free: no waiters
return serve(function(k)
  local all = redis.call('LRANGE', KEYS[k + 2], 0, -1)
  return #all == 0 and 'free' or 'held ' .. table.concat(all, '\n')
end)
