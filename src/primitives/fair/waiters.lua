-- Says who waits. Changes nothing.
-- KEYS   lock, queue
-- ARGV   nonce, (unused) x 4, channel
-- Reply  held, then the hold ids with a line each, the next first | free: nobody waits
return serve(function(k)
  local all = redis.call('LRANGE', KEYS[k + 2], 0, -1)
  return #all == 0 and 'free' or 'held ' .. table.concat(all, '\n')
end)
