-- Sets the count of the write hold to the wanted count. At zero it wakes all waiters, then deletes the lock. If the writer also reads,
-- the lock instead becomes a read lock with the time left on the readers' leases. A waiter that does not have the lock removes its mark
-- and wakes the waiters that the mark kept out. Safe to run twice.
-- KEYS   lock, the waiting writer's mark
-- ARGV   nonce, hold id, (unused), wanted count, publish command, channel
-- Reply  released, number of clients that received the message | gone: there is no such hold
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
    -- PEXPIRE first: the server never refuses it for lack of memory, and after it not the other commands either.
    redis.call('PEXPIRE', lock, longest)
    redis.call('HSET', lock, 'mode', 'read')
    redis.call('HDEL', lock, id)
  else
    redis.call('DEL', lock)
  end
  return 'released ' .. told
end)
