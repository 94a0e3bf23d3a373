-- Runs before each script that releases a lock. It keeps a lock that was released before its `min_hold` was over: another field stays
-- in the hash until then.

-- The field that stays. It is not the field of the hold, so no late request can renew it, and a second release finds it.
local function rest_of(id)
  return id .. ':rest'
end

-- The order matters. The server never refuses PEXPIRE for lack of memory, and after it not the other commands either. The key must not be
-- gone in between: while a cluster moves the slot, the old master would not make it again. Without permission for HDEL it is made again
-- all the same. If one of the others is not permitted, the hold is still there, and it expires.
local function rests(lock, id, rest)
  redis.call('PEXPIRE', lock, rest)
  redis.call('HINCRBY', lock, rest_of(id), '1')
  if redis.pcall('HDEL', lock, id) ~= 1 then
    redis.call('DEL', lock)
    redis.call('HINCRBY', lock, rest_of(id), '1')
    redis.call('PEXPIRE', lock, rest)
  end
end
