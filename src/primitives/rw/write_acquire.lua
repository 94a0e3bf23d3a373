-- Takes the lock for writing, or moves the count to the count wanted. Safe to run twice: the second run finds the count in
-- place. A waiter that finds readers leaves a mark for three seconds, and so does any waiter that was refused several times: the
-- mark keeps others of ours away, also from the free lock, so that the waiter has the next turn. The mark goes with the turn, or
-- when the waiter leaves (write_release).
-- KEYS   lock, the waiting writer's mark
-- ARGV   nonce, hold id (it ends in `:write`), lease ms, count wanted, 'again' if a hold must be there already, 'join' or
--        'stay' to leave a mark beside readers, 'turn' beside anybody, 'late' where no JVM has the lock, else 'first'; channel
-- Reply  granted, count | lost: `again`, but there is no hold | conflict: not a read-write lock
--        busy, ms left (-1: no end), id of the writer, or of a reader, or of the waiter whose turn is next
return serve(function(k, a)
  local lock, mark, id, wanted, how = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 4], ARGV[a + 5]
  local mode = mode_of(lock)
  if mode == 'free' or mode == 'conflict' or redis.call('HEXISTS', lock, id) == 0 then
    if how == 'again' then
      return 'lost'
    end
    if mode == 'conflict' then
      return 'conflict'
    end
    if mode ~= 'free' then
      if how ~= 'first' and (mode == 'read' or how == 'turn' or how == 'late') then
        mark_turn(lock, mark, id, how)
      end
      return string.format('busy %.0f ', redis.call('PTTL', lock)) .. someone(lock)
    end
    local waits = redis.call('GET', mark)
    if waits and waits ~= id then
      return string.format('busy %.0f ', redis.call('PTTL', mark)) .. waits
    end
    redis.call('HSET', lock, 'mode', 'write')
    redis.call('HSET', lock, id, wanted)
    local ends = redis.pcall('PEXPIRE', lock, ARGV[a + 3])
    if ends ~= 1 then -- not allowed: a lock without end would stay for ever if its client went away now
      redis.call('DEL', lock)
      error(ends)
    end
    redis.call('DEL', mark)
    return 'granted ' .. wanted
  end
  redis.call('HSET', lock, id, wanted)
  -- Written even where it changes nothing, so that WAIT has something of this connection to wait for.
  local left = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, math.max(left, tonumber(ARGV[a + 3])))
  return 'granted ' .. wanted
end)
