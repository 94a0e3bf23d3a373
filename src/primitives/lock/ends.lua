-- Runs before scripts that distinguish one lease of a hold from the next.

-- The time at which the lease expires, in ms of the server's clock. Nil if this user may not call TIME. Each renewal changes it.
local function ends(lock)
  local time = (not redis.acl_check_cmd or redis.acl_check_cmd('TIME')) and redis.pcall('TIME') or {}
  return time[1] and time[1] * 1000 + math.floor(time[2] / 1000) + redis.call('PTTL', lock)
end
