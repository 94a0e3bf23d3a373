-- Before each script that releases a lock: what stays of a hold that is released before the time for which nobody else may have
-- the lock (`min_hold`).

-- The field that stays. It is not the hold's own, so nothing that comes late can renew it, and a second release finds it.
local function rest_of(id)
  return id .. ':rest'
end

-- In this order: PEXPIRE is never refused for lack of memory, and after it neither is the rest. Should one of the others not be
-- allowed, the hold is still there, and ends by itself.
local function rests(lock, id, rest)
  redis.call('PEXPIRE', lock, rest)
  redis.call('HINCRBY', lock, id, '0')
  redis.call('DEL', lock)
  redis.call('HINCRBY', lock, rest_of(id), '1')
  redis.call('PEXPIRE', lock, rest)
end
