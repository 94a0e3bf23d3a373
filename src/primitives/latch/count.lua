-- Runs before each script of a latch or a plain semaphore, which is a string with a number.

-- The count. nil: there is no latch. false: the key is not a number.
local function count_of(latch)
  local text = redis.call('GET', latch)
  if text then
    local is_number = text == '0' or string.find(text, '^%-?[1-9]%d*$') -- as DECR reads it
    return is_number and tonumber(text) or false
  end
end
