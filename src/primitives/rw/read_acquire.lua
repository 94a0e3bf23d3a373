-- Acquires the read lock, or sets the count of a read hold to the wanted count. Safe to run twice: the second run finds the count
-- already set. A new reader lets a writer that has left a mark go first, even if the lock is free. It does not do so if its own owner
-- has a write hold; if that hold is named, it must exist. A reader that was refused several times leaves a mark of its own, which keeps
-- writers out (see write_acquire), but no readers.
-- KEYS   lock, the reader's expiry key, the waiting writer's mark
-- ARGV   nonce, hold id, lease ms, wanted count, 'again' to re-enter an existing hold, 'turn' or 'late' to leave a mark, else
--        'first'; channel, id of the owner's write hold or ''
-- Reply  granted, count | lost: `again`, but there is no such hold, or the write hold is gone | conflict: not a read-write lock
--        busy, ms left (-1: never expires), id of the writer, or of a waiting writer
return serve(function(k, a)
  local lock, lives, mark = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local id, lease, wanted, again = ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5] == 'again'
  local writer = again and '' or ARGV[a + 7]
  local mode, theirs = mode_now(lock)
  local is_lock = mode == 'read' or mode == 'write'
  local is_held = is_lock and redis.call('HEXISTS', lock, id) == 1
  if not (is_held and redis.call('EXISTS', lives) == 1) then
    if again then
      return 'lost'
    end
    if mode == 'conflict' then
      return 'conflict'
    end
    if writer ~= '' then
      if redis.call('HEXISTS', lock, writer) == 0 then
        return 'lost'
      end
    elseif mode == 'write' then
      if ARGV[a + 5] == 'turn' or ARGV[a + 5] == 'late' then
        mark_turn(lock, mark, id, ARGV[a + 5])
      end
      theirs = theirs or someone(lock, client_of(id))
      return string.format('busy %.0f ', left_of_writer(lock, theirs)) .. theirs
    else
      local waits = redis.call('GET', mark)
      if waits and writes(waits) then
        return string.format('busy %.0f ', redis.call('PTTL', mark)) .. waits
      elseif waits == id then
        redis.call('DEL', mark)
      end
    end
  end
  -- First the key that expires by itself: without the field it means nothing.
  local longer = lives_for(lives, lease)
  if mode == 'free' then
    redis.call('HSET', lock, 'mode', 'read', id, wanted)
  else
    redis.call('HSET', lock, id, wanted)
  end
  local lasting, why = pcall(lasts, lock, longer)
  if not lasting then
    -- Not permitted: a lock that never expires would stay forever if its client died now. Its caller hears only the error, so nobody
    -- would release a new hold beside others.
    if mode == 'free' then
      redis.call('DEL', lock)
    elseif not is_held then
      redis.call('HDEL', lock, id)
    end
    error(why, 0)
  end
  return 'granted ' .. wanted
end)
