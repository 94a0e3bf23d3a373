-- Sets the hold count to the wanted count. At zero it notifies the next waiter and deletes the lock, in this order: if PUBLISH is
-- refused, the lock must not be gone while no waiter was notified. If `min_hold` is not over yet, it instead keeps the lock for the
-- rest of that time, under another field; the next waiter then tries when that time ends. If the hold does not have the lock, the
-- script removes its place in the queue. Safe to run twice: the second run finds that field and does not change when it expires.
-- KEYS   lock, queue, places
-- ARGV   nonce, hold id, ms for which the lock must stay held or 0, wanted count, publish command, channel
-- Reply  released | gone: there was no hold, but perhaps a place
return serve(function(k, a)
  local lock, queue, places = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local id, wanted, command, channel = ARGV[a + 2], ARGV[a + 4], ARGV[a + 5], ARGV[a + 6]
  local function notify_head()
    local head = redis.call('LINDEX', queue, 0)
    if head then
      publish(command, channel .. ':' .. head)
    end
  end
  local count = redis.call('HGET', lock, id)
  if not count and wanted == '0' and redis.call('HEXISTS', lock, rest_of(id)) == 1 then
    notify_head()
    return 'released'
  end
  if not count then
    local was = wanted == '0' and redis.call('LPOS', queue, id)
    if was then
      redis.call('ZREM', places, id)
      redis.call('LREM', queue, 0, id)
    end
    if wanted == '0' and redis.call('EXISTS', lock) == 0 then
      call_next(queue, places, command, channel, nil, was == 0)
    end
    return 'gone'
  end
  if wanted ~= '0' then
    if wanted ~= count then
      redis.call('HINCRBY', lock, id, wanted - count)
    end
    return 'released'
  end
  if ARGV[a + 3] ~= '0' then
    can_rest(lock, id)
    notify_head()
    rests(lock, id, ARGV[a + 3])
    return 'released'
  end
  call_next(queue, places, command, channel, nil, true)
  redis.call('DEL', lock)
  return 'released'
end)
