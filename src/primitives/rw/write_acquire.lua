-- Acquires the write lock, or sets the hold count to the wanted count. Safe to run twice: the second run finds the count already set.
-- A waiter that finds readers leaves a mark for three seconds, and so does any waiter that was refused several times. The mark keeps
-- other leasehold clients out, even if the lock is free, so the waiter has the next turn. The mark is removed when the waiter acquires
-- the lock, or when it leaves (see write_release). While a reader has the mark, this writer asks again after SOON: the reader removes its
-- mark when it acquires the lock, and nothing is published then. Without a mark of its own, the writer would have no turn while there is
-- always a reader.
-- KEYS   lock, the waiting writer's mark
-- ARGV   nonce, hold id (it ends in `:write`), lease ms, wanted count, 'again' to re-enter an existing hold, 'join' or 'stay' to
--        leave a mark beside readers, 'turn' beside any holder, 'late' if no JVM holds the lock, else 'first'; channel
-- Reply  granted, count | lost: `again`, but there is no such hold | conflict: not a read-write lock
--        busy, ms until the next request makes sense (-1: the lock never expires), id of the writer, or of a reader, or of the waiter
--        whose turn is next
local SOON = 100 -- ms

-- The ms until the next request makes sense. `left` ms are left on the lock, or on the mark of a waiter whose turn is next.
local function look_again(left, waits)
  return waits and not writes(waits) and (left < 0 or left > SOON) and SOON or left
end

return serve(function(k, a)
  local lock, mark, id, wanted, how = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 4], ARGV[a + 5]
  local mode, writer = mode_now(lock)
  if mode == 'free' or mode == 'conflict' or redis.call('HEXISTS', lock, id) == 0 then
    if how == 'again' then
      return 'lost'
    end
    if mode == 'conflict' then
      return 'conflict'
    end
    if mode ~= 'free' then
      local waits
      if how ~= 'first' and (mode == 'read' or how == 'turn' or how == 'late') then
        waits = mark_turn(lock, mark, id, how)
      end
      -- A writer that holds the lock publishes its release.
      local left = look_again(redis.call('PTTL', lock), mode == 'read' and waits)
      return string.format('busy %.0f ', left) .. (writer or someone(lock, client_of(id)))
    end
    local waits = redis.call('GET', mark)
    if waits and waits ~= id then
      return string.format('busy %.0f ', look_again(redis.call('PTTL', mark), waits)) .. waits
    end
    redis.call('HSET', lock, 'mode', 'write', id, wanted)
    local ends = redis.pcall('PEXPIRE', lock, ARGV[a + 3])
    if ends ~= 1 then -- not permitted: a lock that never expires would stay forever if its client died now
      redis.call('DEL', lock)
      error(ends)
    end
    if waits then
      redis.call('DEL', mark)
    end
    return 'granted ' .. wanted
  end
  redis.call('HSET', lock, id, wanted)
  -- Written even if it changes nothing, so that a later WAIT on this connection has a write to wait for.
  local left = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, math.max(left, tonumber(ARGV[a + 3])))
  return 'granted ' .. wanted
end)
