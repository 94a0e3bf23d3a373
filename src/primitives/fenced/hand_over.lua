-- Moves the last acquisition straight to another hold of the same client, with a lease and a token of its own; nothing is
-- published. Safe to run twice: the second run finds the new hold in place, and its token.
-- KEYS   lock, token
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold, channel
-- Reply  handed, token | handed before, token: the new hold was there already | deeper, count: not at its last acquisition,
--        nothing changed | gone: there is no such hold
return serve(function(k, a)
  local lock, token, id, lease, heir = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5]
  if redis.call('HEXISTS', lock, heir) == 1 then
    -- A late second run finds a hold that may have been given a longer lease meanwhile.
    local left = redis.call('PTTL', lock)
    redis.call('PEXPIRE', lock, left > tonumber(lease) and left or lease)
    return 'handed before ' .. token_of(token)
  end
  local count = redis.call('HGET', lock, id)
  if not count then
    return 'gone'
  end
  if count ~= '1' then
    return 'deeper ' .. count
  end
  -- In this order: should one of the first two be refused, the lock is still where it was. So it is where one of the others is not
  -- allowed; with two fields it would be no lock, and the heir would take it for its own.
  redis.call('INCR', token)
  redis.call('HINCRBY', lock, heir, '1')
  local done = redis.pcall('PEXPIRE', lock, lease)
  if done ~= 1 then
    redis.call('HDEL', lock, heir)
    error(done)
  end
  done = redis.pcall('HDEL', lock, id)
  if done ~= 1 then
    redis.call('DEL', lock)
    redis.call('HINCRBY', lock, id, '1')
    redis.call('PEXPIRE', lock, lease)
    error(done)
  end
  return 'handed ' .. token_of(token)
end)
