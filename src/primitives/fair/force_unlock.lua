-- Releases the lock of the named hold on behalf of its holder, and notifies the next waiter. Safe to run twice or late: it changes no
-- other hold.
-- KEYS   lock, queue, places
-- ARGV   nonce, hold id, (unused) x 2, publish command, channel, (unused), number of the call
-- Reply  released | gone: there is no such hold
return serve(function(k, a)
  local lock = KEYS[k + 1]
  if redis.call('HEXISTS', lock, ARGV[a + 2]) == 0 then
    return gone_or_done(lock, ARGV[a + 8])
  end
  call_next(KEYS[k + 2], KEYS[k + 3], ARGV[a + 5], ARGV[a + 6], nil, true)
  redis.call('DEL', lock)
  return done(lock, ARGV[a + 8])
end)
