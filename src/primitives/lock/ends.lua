-- Before scripts that tell one lease of a hold from the next.

-- When the lease ends, in ms of the server's clock; nil if this client has no permission to ask for the time. Each renewal moves it.
local function ends(lock)
  local time = (not redis.acl_check_cmd or redis.acl_check_cmd('TIME')) and redis.pcall('TIME') or {}
  return time[1] and time[1] * 1000 + math.floor(time[2] / 1000) + redis.call('PTTL', lock)
end
