-- Runs before scripts that distinguish one lease of a hold from the next.

-- The time at which the lease expires, in ms of the server's clock. Nil if this user may call neither PEXPIRETIME nor TIME. Each renewal
-- changes it. Before Redis 7.2, TIME goes on while a script runs, and PTTL counts from its start: on a server that stands still for some
-- ms in between, their sum differs from one call to the next. So PEXPIRETIME is better; servers before 7.0 do not have it.
local function ends(lock)
  local checks = redis.acl_check_cmd
  local known, permitted = pcall(checks or error, 'PEXPIRETIME')
  if known and permitted then
    return redis.call('PEXPIRETIME', lock)
  end
  local left = redis.call('PTTL', lock)
  if left < 0 then
    return left -- it never expires, or does not exist
  end
  local time = (not redis.acl_check_cmd or redis.acl_check_cmd('TIME')) and redis.pcall('TIME') or {}
  return time[1] and time[1] * 1000 + math.floor(time[2] / 1000) + left
end
