-- Sets the count of a read hold to the wanted count, and removes the hold at zero. The last reader wakes the waiters and deletes the
-- lock, in this order: if PUBLISH is refused, the lock must not be gone while no waiter was woken. Other readers keep their holds: the
-- lock lasts as long as the longest of their leases, or as the lease of a writer that is the same owner. A waiter that does not have
-- the lock removes its mark and wakes the writers that the mark kept out. Safe to run twice.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, (unused), wanted count, publish command, channel
-- Reply  released, number of clients that received the message
--        gone: there is no such hold, or its lease had expired; nothing of it is left
return serve(function(k, a)
  local lock, lives, id, wanted = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 4]
  if redis.call('HEXISTS', lock, id) == 0 then
    -- Not one of KEYS, so that no release waits for it while a cluster moves the slot. If it cannot be read, it expires.
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
