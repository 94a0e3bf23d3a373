-- Runs before each script that releases a lock. It keeps a lock that was released before its `min_hold` was over: another field stays
-- in the hash until then.

-- The field that stays. It is not the field of the hold, so no late request can renew it, and a second release finds it.
local function rest_of(id)
  return id .. ':rest'
end

-- Fails if this user may not call HDEL, before anything is changed: else both fields would stay. Removes nothing. After it, the server refuses
-- no command of this script for lack of memory.
local function can_rest(lock, id)
  redis.call('HDEL', lock, rest_of(id))
end

-- PEXPIRE last: if its time is over at once, it deletes the key, and a later write would make the key again, without an expiry. The key must
-- not be gone in between: while a cluster moves the slot, the old master would not make it again.
local function rests(lock, id, rest)
  redis.call('HINCRBY', lock, rest_of(id), '1')
  redis.call('HDEL', lock, id)
  redis.call('PEXPIRE', lock, rest)
end
