-- Writes a value of the user's while the hold is there: looking and writing are one step. Safe to run twice; one that is late
-- finds no hold, since ids never come back.
-- KEYS   lock, the key that is written
-- ARGV   nonce, hold id, value
-- Reply  kept | gone: there is no such hold, and nothing was written
return serve(function(k, a)
  if redis.call('HEXISTS', KEYS[k + 1], ARGV[a + 2]) == 0 then
    return 'gone'
  end
  redis.call('SET', KEYS[k + 2], ARGV[a + 3])
  return 'kept'
end)
