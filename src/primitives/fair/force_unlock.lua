-- Releases the lock of the named hold on behalf of its holder, and notifies the next waiter. Safe to run twice or late: it changes no
-- other hold. Each hold of a leasehold client has an id of its own. A thread of a JVM has the same id again, but another lease.
-- KEYS   lock, queue, places
-- ARGV   nonce, hold id, (unused) x 2, publish command, channel, time at which the lease expires by the lookup ('': not known), number of
--        the call
-- Reply  released | gone: there is no such hold | kept: the lease of a JVM was renewed since
return serve(function(k, a)
  local lock, id = KEYS[k + 1], ARGV[a + 2]
  if was_done(lock, ARGV[a + 8]) then
    return 'released'
  elseif redis.call('HEXISTS', lock, id) == 0 then
    return 'gone'
  end
  local seen = not ours(id) and tonumber(ARGV[a + 7])
  local now = seen and ends(lock)
  if now and math.abs(now - seen) > 1 then -- TIME and PTTL may read the clock at different milliseconds
    return 'kept'
  end
  call_next(KEYS[k + 2], KEYS[k + 3], ARGV[a + 5], ARGV[a + 6], nil, true)
  redis.call('DEL', lock)
  return done(lock, ARGV[a + 8])
end)
