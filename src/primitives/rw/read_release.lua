-- Sets the count of a read hold to the wanted count, and removes the hold at zero. The last reader wakes the waiters and deletes the
-- lock, in this order: if PUBLISH is refused, the lock must not be gone while no waiter was woken. Other readers keep their holds: the
-- lock lasts as long as the longest of their leases, or as the lease of a writer that is the same owner. If `min_hold` is not over yet,
-- the hold instead rests for the rest of that time, under another field. Where only holds that rest are left, the waiters are woken, too:
-- they then try when that time ends. A waiter that does not have the lock removes its mark and wakes the writers that the mark kept out.
-- Safe to run twice: the second run finds that field and does not change when it expires.
-- KEYS   lock, the reader's expiry key
-- ARGV   nonce, hold id, ms for which the lock must stay held or 0, wanted count, publish command, channel
-- Reply  released, number of clients that received the message
--        gone: there is no such hold, or its lease had expired; nothing of it is left
return serve(function(k, a)
  local lock, lives, id, wanted = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 4]
  if redis.call('HEXISTS', lock, id) == 0 then
    -- Not one of KEYS, so that no release waits for it while a cluster moves the slot. If it cannot be read, it expires.
    local mark = mark_of(lock)
    if wanted == '0' and redis.pcall('GET', mark) == id then
      publish(ARGV[a + 5], ARGV[a + 6], '0')
      redis.call('DEL', mark)
    end
    redis.call('DEL', lives)
    return wanted == '0' and redis.call('HEXISTS', lock, rest_of(id)) == 1 and 'released 0' or 'gone'
  end
  local over, told = redis.call('EXISTS', lives) == 0, 0
  if wanted ~= '0' and not over then
    redis.call('HSET', lock, id, wanted)
    return 'released 0'
  end
  local rest, last = over and 0 or tonumber(ARGV[a + 3]), nil
  if rest > 0 then
    can_rest(lock, id, true)
  end
  local mode, writer = mode_now(lock)
  if mode == 'read' or writer and is_rest(writer) then
    local longest, is_read = longest_reader(lock, id)
    last = math.max(rest, longest, writer and left_of_writer(lock, writer) or 0)
    told = is_read and 0 or publish(ARGV[a + 5], ARGV[a + 6], '0')
  end
  if rest > 0 then
    -- If one of these is refused, the hold is still there, and it expires.
    redis.call('PEXPIRE', lives, rest)
    redis.call('SET', lives_of(tagged(lock), rest_of(id), '1'), '1', 'PX', rest)
    redis.call('HSET', lock, rest_of(id), '1')
  end
  if mode == 'read' and last <= 0 then
    redis.call('DEL', lock)
  else
    redis.call('HDEL', lock, id)
    if last then
      redis.call('PEXPIRE', lock, last)
    end
  end
  redis.call('DEL', lives)
  return over and 'gone' or 'released ' .. told
end)
