-- Sets the count of the write hold to the wanted count. At zero it wakes all waiters, then deletes the lock. If the writer also reads,
-- the lock instead becomes a read lock with the time left on the readers' leases. If `min_hold` is not over yet, the write hold instead
-- rests for the rest of that time, under another field; the woken waiters then try when that time ends. A waiter that does not have the
-- lock removes its mark and wakes the waiters that the mark kept out. Safe to run twice: the second run finds that field and does not
-- change when it expires.
-- KEYS   lock, the waiting writer's mark
-- ARGV   nonce, hold id, ms for which the lock must stay held or 0, wanted count, publish command, channel
-- Reply  released, number of clients that received the message | gone: there is no such hold
return serve(function(k, a)
  local lock, mark, id, rest, wanted = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  if wanted == '0' and redis.call('GET', mark) == id then
    publish(ARGV[a + 5], ARGV[a + 6], '0')
    redis.call('DEL', mark)
  end
  if redis.call('HEXISTS', lock, id) == 0 then
    if wanted == '0' and redis.call('HEXISTS', lock, rest_of(id)) == 1 then
      return 'released ' .. publish(ARGV[a + 5], ARGV[a + 6], '1')
    end
    return 'gone'
  end
  if wanted ~= '0' then
    redis.call('HSET', lock, id, wanted)
    return 'released 0'
  end
  local longest = longest_reader(lock)
  local has_reads = redis.call('HLEN', lock) > 2
  if rest ~= '0' or longest > 0 then
    can_rest(lock, id, rest ~= '0' and has_reads)
  end
  local told = publish(ARGV[a + 5], ARGV[a + 6], '1')
  -- PEXPIRE last: if its time is over at once, it deletes the lock, and a later write would make the lock again, without an expiry.
  if rest ~= '0' then
    if has_reads then
      redis.call('SET', lives_of(tagged(lock), rest_of(id), '1'), '1', 'PX', rest)
    end
    redis.call('HSET', lock, rest_of(id), '1')
    redis.call('HDEL', lock, id)
    redis.call('PEXPIRE', lock, math.max(longest, tonumber(rest)))
  elseif longest > 0 then
    redis.call('HSET', lock, 'mode', 'read')
    redis.call('HDEL', lock, id)
    redis.call('PEXPIRE', lock, longest)
  else
    redis.call('DEL', lock)
  end
  return 'released ' .. told
end)
