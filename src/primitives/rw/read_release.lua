-- Moves the count of a read hold to the count wanted; at zero the hold goes. The last reader wakes the waiters and deletes the
-- lock, in this order: should PUBLISH be refused, the lock must not be gone with nobody woken. Others keep what they have:
-- the lock lives as long as the longest of their leases, or as the writer's, if the hold was below one. A waiter that does not have
-- the lock takes its mark back and wakes the writers it kept away. Safe to run twice.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, (unused), count wanted, publish command, channel
-- Reply  released, clients that were told | gone: there is no such hold, or its lease was over; nothing of it is left
return serve(function(k, a)
  local lock, lives, id, wanted = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 4]
  if redis.call('HEXISTS', lock, id) == 0 then
    -- Not one of KEYS, so that no release waits for it while a cluster moves the slot. Where it cannot be read it ends by itself.
    local mark = 'leasehold_rwlock_waits:' .. (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}')
    if wanted == '0' and redis.pcall('GET', mark) == id then
      publish(ARGV[a + 5], ARGV[a + 6], '0')
      redis.call('DEL', mark)
    end
    redis.call('DEL', lives)
    return 'gone'
  end
  local over, told = redis.call('EXISTS', lives) == 0, 0
  if wanted ~= '0' and not over then
    redis.call('HSET', lock, id, wanted)
    return 'released 0'
  end
  local longest = mode_of(lock) == 'read' and longest_reader(lock, id)
  if longest and longest <= 0 then
    told = publish(ARGV[a + 5], ARGV[a + 6], '0')
    redis.call('DEL', lock)
  else
    redis.call('HDEL', lock, id)
    if longest then
      redis.call('PEXPIRE', lock, longest)
    end
  end
  redis.call('DEL', lives)
  return over and 'gone' or 'released ' .. told
end)
