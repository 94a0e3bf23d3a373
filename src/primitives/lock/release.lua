-- Moves the count to the level wanted; at zero wakes the waiters and deletes the lock. Safe to run twice. Published
-- before deleting: should PUBLISH be refused, the lock must not be gone with nobody woken.
-- KEYS   lock, channel
-- ARGV   nonce, hold id, (unused), level wanted, publish command
-- Reply  released, level now | gone: there is no such hold
return serve(function(k, a)
  local lock, id, level = KEYS[k + 1], ARGV[a + 2], tonumber(ARGV[a + 4])
  local count = redis.call('HGET', lock, id)
  if not count then
    return 'gone'
  end
  if level == 0 then
    redis.call(ARGV[a + 5], KEYS[k + 2], '0')
    redis.call('DEL', lock)
  elseif level ~= tonumber(count) then
    redis.call('HINCRBY', lock, id, level - count)
  end
  return 'released', level
end)
