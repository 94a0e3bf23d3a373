-- Runs before each script of a latch or a plain semaphore, which is a string with a number.

-- The number. nil: there is no key. false: the key is not a number, or one that Lua does not have exactly.
local function count_of(latch)
  local text = redis.call('GET', latch)
  if text then
    local is_number = text == '0' or string.find(text, '^%-?[1-9]%d*$') -- as DECR reads it
    local count = is_number and tonumber(text)
    return count and math.abs(count) < 2 ^ 53 and count or false
  end
end
