-- Before each script that grants a fenced lock: the token of whoever has it, as text, since a Lua number is exact only up to
-- 2^53. One that was deleted begins anew; the lock is held, so nobody else can raise it meanwhile.
local function token_of(key)
  if redis.call('EXISTS', key) == 0 then
    redis.call('INCR', key)
  end
  return redis.call('GET', key)
end
