-- Asks the holders of a lock to release it. Safe to run twice: they are asked twice.
-- KEYS   lock
-- ARGV   nonce, publish command, channel, message
-- Reply  held, number of clients that listen | free: nobody holds it, or it only rests
return serve(function(k, a)
  local lock = KEYS[k + 1]
  local fields = redis.call('HLEN', lock)
  if fields == 0 or (fields == 1 and string.find(redis.call('HGETALL', lock)[1], ':rest$')) then
    return 'free'
  end
  return 'held ' .. redis.call(ARGV[a + 2], ARGV[a + 3], ARGV[a + 4])
end)
