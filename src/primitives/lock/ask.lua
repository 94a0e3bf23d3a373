-- Asks the holders of a lock to release it. Safe to run twice: they are asked twice.
-- KEYS   lock
-- ARGV   nonce, publish command, channel, message
-- Reply  held, number of clients that listen | free
return serve(function(k, a)
  if redis.call('EXISTS', KEYS[k + 1]) == 0 then
    return 'free'
  end
  return 'held ' .. redis.call(ARGV[a + 2], ARGV[a + 3], ARGV[a + 4])
end)
