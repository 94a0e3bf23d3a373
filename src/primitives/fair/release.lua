-- Moves the count to the count wanted; at zero calls the next and deletes the lock, in this order: should PUBLISH be refused, the
-- lock must not be gone with nobody woken. Or it leaves the lock there for so long, under another field: then the next looks when that
-- is. One that does not have the lock gives its place back. Safe to run twice: the second run finds that field, and leaves its end
-- as it is.
-- KEYS   lock, queue, places
-- ARGV   nonce, hold id, ms for which nobody gets it yet or 0, count wanted, publish command, channel
-- Reply  released | gone: there was no hold, but perhaps a place; each with the clients that were told, and the ms that the one
--        called has to come (0: nobody was). If nobody was told, send this again then: that calls the one behind it.
return serve(function(k, a)
  local lock, queue, places = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local id, wanted, command, channel = ARGV[a + 2], ARGV[a + 4], ARGV[a + 5], ARGV[a + 6]
  local function called(code, first, till, told)
    return string.format('%s %d %.0f', code, told or 0, first and math.max(till - clock(), 1) or 0)
  end
  local function told_head()
    local head = redis.call('LINDEX', queue, 0)
    return head and publish(command, channel .. ':' .. head) or 0
  end
  local count = redis.call('HGET', lock, id)
  if not count and wanted == '0' and redis.call('HEXISTS', lock, rest_of(id)) == 1 then
    return 'released ' .. told_head() .. ' 0'
  end
  if not count then
    local was = wanted == '0' and redis.call('LPOS', queue, id)
    if was then
      redis.call('ZREM', places, id)
      redis.call('LREM', queue, 0, id)
    end
    if wanted == '0' and redis.call('EXISTS', lock) == 0 then
      return called('gone', call_next(queue, places, command, channel, nil, was == 0))
    end
    return 'gone 0 0'
  end
  if wanted ~= '0' then
    if wanted ~= count then
      redis.call('HINCRBY', lock, id, wanted - count)
    end
    return 'released 0 0'
  end
  if ARGV[a + 3] ~= '0' then
    local told = told_head()
    rests(lock, id, ARGV[a + 3])
    return 'released ' .. told .. ' 0'
  end
  local first, till, told = call_next(queue, places, command, channel, nil, true)
  redis.call('DEL', lock)
  return called('released', first, till, told)
end)
