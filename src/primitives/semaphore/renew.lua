-- Extends the lease of the permits of a hold; never shortens it. With lease 0 it only checks. A permit whose time is over does not come
-- back. All permits of a hold have one end.
-- KEYS   semaphore, permits taken
-- ARGV   nonce, hold id, lease ms, number of its permits
-- Reply  kept, ms left | gone: the permits are not there, or their time is over, or there is no semaphore
return serve(function(k, a)
  local taken, now, lease, lasts = KEYS[k + 2], clock(), ARGV[a + 3], redis.call('PTTL', KEYS[k + 1])
  local _, permit = permits_of(ARGV[a + 2])
  local ends = ends_of(taken, permit(0))
  if not ends or ends <= now or lasts == -2 then
    return 'gone'
  end
  local function extend()
    for n = 0, tonumber(ARGV[a + 4]) - 1 do
      redis.call('ZADD', taken, 'XX', string.format('%.0f', ends), permit(n))
    end
  end
  if tonumber(lease) > ends - now then
    ends = now + lease
    if not pcall(extend) then
      redis.call('ZREM', taken, NO_PERMIT) -- a server without memory permits it only after a removal
      extend()
    end
    if lasts > 0 then
      redis.call('PEXPIRE', taken, lasts) -- the time of the semaphore may be longer now
    end
  end
  return string.format('kept %.0f', ends - now)
end)
