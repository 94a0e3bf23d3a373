-- Returns the holder of the lock. Changes nothing.
-- KEYS   lock
-- ARGV   nonce, (unused) x 3, 'ends' or '', channel
-- Reply  held, count, ms left (-1: never expires), hold id | free | conflict: not a lock
--        held, time at which the lease expires by the server's clock ('-': not known), count, ms left, hold id: for 'ends'
return serve(function(k, a)
  local lock = KEYS[k + 1]
  if redis.call('EXISTS', lock) == 0 then
    return 'free'
  end
  local id, count = holder(lock)
  if not id then
    return 'conflict'
  end
  if ARGV[a + 5] == 'ends' then
    local at = ends(lock)
    count = (at and string.format('%.0f', at) or '-') .. ' ' .. count
  end
  return string.format('held %s %.0f ', count, redis.call('PTTL', lock)) .. id
end)
