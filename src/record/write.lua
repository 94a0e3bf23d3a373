-- Names the process behind a client, for some time. Safe to run twice.
-- KEYS   record
-- ARGV   nonce, text, ms for which it lasts
-- Reply  kept
return serve(function(k, a)
  redis.call('SET', KEYS[k + 1], ARGV[a + 2], 'PX', ARGV[a + 3])
  return 'kept'
end)
