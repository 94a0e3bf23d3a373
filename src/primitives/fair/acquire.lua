-- Acquires the lock if it is free and no other waiter is before this one, or sets the hold count to the wanted count. Otherwise `join`
-- adds the waiter at the end of the queue. `stay` keeps the place that is there and never creates one, so a late run does no harm.
-- `first` does not wait. Safe to run twice: the second run finds the count or the place already set.
-- KEYS   lock, queue, places
-- ARGV   nonce, hold id, lease ms, wanted count, 'join', 'stay', 'first', or 'again' to re-enter an existing hold; channel,
--        publish command
-- Reply  granted, count | lost: `again`, but there is no such hold | conflict: not a lock | out: `stay`, but there is no place
--        queued, ms until the next request makes sense (-1: the lock never expires), place (1: next), id of the holder or nothing
--        busy, ms as above, id of the holder or nothing: for `first`
return serve(function(k, a)
  local lock, queue, places = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local id, lease, wanted, how, channel = ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5], ARGV[a + 6]
  local count = redis.call('HGET', lock, id)
  if count then
    if wanted ~= count then
      redis.call('HINCRBY', lock, id, wanted - count)
    end
    local left = redis.call('PTTL', lock)
    redis.call('PEXPIRE', lock, left > tonumber(lease) and left or lease)
    return 'granted ' .. wanted
  end
  if how == 'again' then
    return 'lost'
  end
  local free = redis.call('EXISTS', lock) == 0
  local theirs = free and '' or holder(lock)
  if not theirs then
    return 'conflict'
  end
  local place = how ~= 'first' and redis.call('LPOS', queue, id)
  if how == 'stay' and not place then
    return 'out'
  end
  local left
  if free then
    local first, turn = id, 0 -- if this waiter is the head of the queue, no other one is notified
    if place ~= 0 then
      first, turn = call_next(queue, places, ARGV[a + 7], channel, id, false)
    end
    if not first or first == id then
      redis.call('HINCRBY', lock, id, wanted)
      -- After the first that is refused the lock must not stay: its caller hears only the error. The waiter keeps its place, or what is
      -- left of it does no harm.
      local reply = redis.pcall('PEXPIRE', lock, lease)
      reply = type(reply) == 'table' and reply or redis.pcall('ZREM', places, id)
      reply = type(reply) == 'table' and reply or redis.pcall('LREM', queue, 1, id)
      if type(reply) == 'table' then
        redis.call('DEL', lock)
        error(reply)
      end
      return 'granted ' .. wanted
    end
    left, place = turn + 1, redis.call('LPOS', queue, id) -- perhaps waiters before this one have been removed
  else
    left = redis.call('PTTL', lock)
  end
  if how == 'first' then
    return string.format('busy %.0f ', left) .. theirs
  end
  -- A JVM subtracts its wait time from all later places when it acquires the lock. So add that much for each JVM before this waiter.
  -- Count only as many as can have their turn before this waiter's next request, because the queue may be long.
  local stay = PLACE
  if place ~= 0 then
    for _, other in ipairs(redis.call('LRANGE', queue, 0, math.min(place or 256, 256) - 1)) do
      if not ours(other) then
        stay = stay + JVM
      end
    end
  end
  local joins, now = not place, clock()
  place = place or redis.call('RPUSH', queue, id) - 1
  -- A head was notified although its own lock is held: the names `a` and `{a}` share the queue, and the other lock is free. This
  -- request does not extend the time of that turn, so that the waiters for the other lock get their turn. Nor does a request that
  -- arrives soon after the turn: the waiters for the other lock send theirs at the same moment. One that arrives later finds a place
  -- that expired during an outage, and renews it.
  local given = place == 0 and not joins and tonumber(redis.call('ZSCORE', places, id) or 0) or 0
  local is_called = given > now - GRACE and given <= now + GRACE
  local kept = is_called or redis.pcall('ZADD', places, string.format('%.0f', now + stay), id)
  if type(kept) == 'table' then -- not permitted: the others would pass over a waiter without a place
    if joins then
      redis.call('LREM', queue, -1, id)
    end
    error(kept)
  end
  -- The keys do not expire soon, because a JVM that joins later does not extend this time. Only the first waiter of a new list looks
  -- at both keys.
  local lasting, why = pcall(function()
    local soon = stay + DAY - JVM
    if redis.call('PTTL', places) < soon or joins and place == 0 and redis.call('PTTL', queue) < soon then
      expire_after(queue, places, stay + DAY)
    end
  end)
  if not lasting then -- not permitted: the caller hears only the error, so a new place must not stay
    if joins then
      redis.call('ZREM', places, id)
      redis.call('LREM', queue, -1, id)
    end
    error(why, 0)
  end
  return string.format('queued %.0f %d ', left, place + 1) .. theirs
end)
