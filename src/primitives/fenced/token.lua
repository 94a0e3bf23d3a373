-- Runs before each script that grants a fenced lock. Returns the token of the holder, as text, because a Lua number is exact only up
-- to 2^53. If the key was deleted, tokens start at 1 again. The lock is held, so no other client increments the token in between.
local function token_of(key)
  if redis.call('EXISTS', key) == 0 then
    redis.call('INCR', key)
  end
  return redis.call('GET', key)
end
