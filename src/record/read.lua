-- The process behind a client.
-- KEYS   record
-- ARGV   nonce
-- Reply  held, text | free: there is no record
return serve(function(k, a)
  local text = redis.call('GET', KEYS[k + 1])
  return text and 'held ' .. text or 'free'
end)
