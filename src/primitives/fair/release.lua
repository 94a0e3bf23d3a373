-- Sets the hold count to the wanted count. At zero it notifies the next waiter and deletes the lock, in this order: if PUBLISH is
-- refused, the lock must not be gone while no waiter was notified. If `min_hold` is not over yet, it instead keeps the lock for the
-- rest of that time, under another field; the next waiter then tries when that time ends. If the hold does not have the lock, the
-- script removes its place in the queue. Safe to run twice: the second run finds that field and does not change when it expires.
-- KEYS   lock, queue, places
-- ARGV   nonce, hold id, ms for which the lock must stay held or 0, wanted count, publish command, channel
-- Reply  released | gone: there was no hold, but perhaps a place. Each with the number of clients that received the message, and the
--        ms that the notified waiter has to come (0: none was notified). If no client received it, send this again after that
--        time: it then notifies the waiter behind.
return serve(function(k, a)
  local lock, queue, places = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local id, wanted, command, channel = ARGV[a + 2], ARGV[a + 4], ARGV[a + 5], ARGV[a + 6]
  local function called(code, first, turn, told)
    return string.format('%s %d %.0f', code, told, first and math.max(turn, 1) or 0)
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
    can_rest(lock, id)
    local told = told_head()
    rests(lock, id, ARGV[a + 3])
    return 'released ' .. told .. ' 0'
  end
  local first, turn, told = call_next(queue, places, command, channel, nil, true)
  redis.call('DEL', lock)
  return called('released', first, turn, told)
end)
