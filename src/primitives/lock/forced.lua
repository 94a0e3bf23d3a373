-- Runs before each script that forces a lock open. It notes the number of the call that forced the lock open in an extra key. If a call
-- gets no reply to its first request, its second one finds no lock anymore. The key then shows whether the first request forced the lock
-- open, or whether the holder released it.

local function forced(lock)
  return 'leasehold_forced:' .. (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}')
end

-- True if this user may call a command. The server logs each refusal, so a command that is not permitted is not called. If the server
-- cannot check it, this returns true.
local function may(...)
  return not redis.acl_check_cmd or redis.acl_check_cmd(...)
end

-- True if an earlier request of this call has forced the lock open. Each script asks this first: since then, its holder may have acquired it
-- again under the same id. Without permission for the extra key this is false.
local function was_done(lock, call)
  local key = forced(lock)
  return call and may('GET', key) and redis.pcall('GET', key) == call
end

-- Notes the call, for as long as it may send further requests. Runs last, because the server may refuse it for lack of memory or
-- permission.
local function done(lock, call)
  local key = forced(lock)
  if call and may('SET', key, call, 'PX', '60000') then
    redis.pcall('SET', key, call, 'PX', '60000')
  end
  return 'released'
end
