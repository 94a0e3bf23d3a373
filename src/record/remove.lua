-- The client ends. Safe to run twice.
-- KEYS   record
-- ARGV   nonce
-- Reply  gone
return serve(function(k, a)
  redis.call('DEL', KEYS[k + 1])
  return 'gone'
end)
