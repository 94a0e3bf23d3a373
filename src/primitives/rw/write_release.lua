-- Moves the count of the write hold to the count wanted. At zero all who wait are woken, then the lock is deleted; or, where
-- the writer also reads, it becomes a read lock with what is left of the readers' leases. One that does not have the lock
-- takes its mark back and wakes the readers it kept away. Safe to run twice.
-- KEYS   lock, the waiting writer's mark
-- ARGV   nonce, hold id, (unused), count wanted, publish command, channel
-- Reply  released, clients that were told | gone: there is no such hold
return serve(function(k, a)
  local lock, mark, id, wanted = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 4]
  if wanted == '0' and redis.call('GET', mark) == id then
    publish(ARGV[a + 5], ARGV[a + 6], '0')
    redis.call('DEL', mark)
  end
  if redis.call('HEXISTS', lock, id) == 0 then
    return 'gone'
  end
  if wanted ~= '0' then
    redis.call('HSET', lock, id, wanted)
    return 'released 0'
  end
  local longest = longest_reader(lock)
  local told = publish(ARGV[a + 5], ARGV[a + 6], '1')
  if longest > 0 then
    redis.call('HSET', lock, 'mode', 'read')
    redis.call('HDEL', lock, id)
    redis.call('PEXPIRE', lock, longest)
  else
    redis.call('DEL', lock)
  end
  return 'released ' .. told
end)
