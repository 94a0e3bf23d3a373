-- Before each script that forces a lock open: which call has done it. A call whose first request was not answered sends a second one,
-- which finds nothing any more. Then this key tells whether the first one has done it, or the holder has released by itself.

local function forced(lock)
  return 'leasehold_forced:' .. (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}')
end

-- Not tried where this client has no permission, for each refusal is logged; where the server cannot say, it is tried.
local function may(...)
  return not redis.acl_check_cmd or redis.acl_check_cmd(...)
end

-- The answer where there is no such hold. Without permission for that key it is `gone`.
local function gone_or_done(lock, call)
  local key = forced(lock)
  return call and may('GET', key) and redis.pcall('GET', key) == call and 'released' or 'gone'
end

-- For as long as the call may send further requests. Last: it may be refused for lack of memory or of permission.
local function done(lock, call)
  local key = forced(lock)
  if call and may('SET', key, call, 'PX', '60000') then
    redis.pcall('SET', key, call, 'PX', '60000')
  end
  return 'released'
end
