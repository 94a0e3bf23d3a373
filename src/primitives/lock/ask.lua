-- Asks the holders of a lock to release it. Safe to run twice: they are asked twice.
-- KEYS   lock
-- ARGV   nonce, message, two that it does not read, publish command, channel
-- Reply  held, number of clients that listen | free: nobody holds it, or it only rests
return serve(function(k, a)
  local lock = KEYS[k + 1]
  local fields = redis.call('HLEN', lock)
  if fields == 0 or (fields == 1 and string.find(redis.call('HGETALL', lock)[1], ':rest$')) then
    return 'free'
  end
  return 'held ' .. redis.call(ARGV[a + 5], ARGV[a + 6], ARGV[a + 2])
end)
