-- Writes a value of the user if the server still has the hold: the check and the write are one step. Safe to run twice. A late run
-- finds no hold, because ids are never reused.
-- KEYS   lock, the key to write
-- ARGV   nonce, hold id, value
-- Reply  kept | gone: there is no such hold, and nothing was written
return serve(function(k, a)
  if redis.call('HEXISTS', KEYS[k + 1], ARGV[a + 2]) == 0 then
    return 'gone'
  end
  redis.call('SET', KEYS[k + 2], ARGV[a + 3])
  return 'kept'
end)
