-- Returns the number of free permits, and the permits that are taken. Changes nothing: permits whose time is over count as free.
-- KEYS   semaphore, permits taken
-- ARGV   nonce, (unused) x 3, 'free' to leave out the permits that are taken
-- Reply  held, number of free permits, then for each that is taken its id in hex, and the ms that are left (-1: it never ends)
--        free: there is no semaphore | conflict: not a semaphore
return serve(function(k, a)
  local free, now, all = free_permits(KEYS[k + 1]), clock(), {}
  if not free then
    return free == nil and 'free' or 'conflict'
  end
  if ARGV[a + 5] == 'free' then
    free = free + #redis.call('ZRANGEBYSCORE', KEYS[k + 2], '-inf', string.format('%.0f', now))
    return string.format('held %.0f', free)
  end
  local list = redis.call('ZRANGE', KEYS[k + 2], '0', '-1', 'WITHSCORES')
  for n = 1, #list, 2 do
    local ends = tonumber(list[n + 1])
    if ends <= now then
      free = free + 1
    else
      local hex = string.gsub(list[n], '.', function(byte)
        return string.format('%02x', string.byte(byte))
      end)
      all[#all + 1] = string.format(' %s %.0f', hex, ends == 922337203685477 and -1 or ends - now)
    end
  end
  return string.format('held %.0f', free) .. table.concat(all)
end)
