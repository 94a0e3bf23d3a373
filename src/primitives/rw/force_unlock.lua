-- Releases the named holds, readers and writer, on behalf of their holders, and wakes all waiters. Safe to run twice or late: it
-- changes no later holds, except that of a thread of a JVM, which has the same id again.
-- KEYS   lock
-- ARGV   nonce, the hold ids, one per line, (unused) x 2, publish command, channel, (unused), number of the call
-- Reply  released | gone: there is no such hold
return serve(function(k, a)
  local lock, meant, gone, others, writer = KEYS[k + 1], {}, {}, 0, writer_of(KEYS[k + 1])
  if was_done(lock, ARGV[a + 8]) then
    return 'released'
  end
  for id in string.gmatch(ARGV[a + 2], '[^\n]+') do
    meant[id], meant[rest_of(id)] = true, true -- it may have been released since it was looked up
  end
  local fields = redis.call('HGETALL', lock)
  for n = 1, #fields, 2 do
    local id = fields[n]
    if meant[id] then
      gone[#gone + 1] = { id, tonumber(fields[n + 1]) or 0 }
    elseif id ~= 'mode' then
      others = others + 1
    end
  end
  if #gone == 0 then
    return 'gone'
  end
  publish(ARGV[a + 5], ARGV[a + 6], '1')
  for _, hold in ipairs(gone) do
    -- First the keys that may be refused while the slot is being moved: a second run must still find the field of the hold.
    for level = 1, hold[2] do
      redis.call('DEL', lives_of(tagged(lock), hold[1], level))
    end
    redis.call('HDEL', lock, hold[1])
  end
  if others == 0 then
    redis.call('DEL', lock)
  elseif not writer or meant[writer] then
    redis.call('HSET', lock, 'mode', 'read')
    if not foreign(lock) then -- what rests is never released, so the leases of the others would keep it
      redis.call('PEXPIRE', lock, math.max(0, (longest_reader(lock))))
    end
  elseif is_rest(writer) then
    redis.call('PEXPIRE', lock, math.max(left_of_writer(lock, writer), (longest_reader(lock))))
  end
  return done(lock, ARGV[a + 8])
end)
