-- Runs before each script of a semaphore. The semaphore is a string with the number of free permits. The others are members of a sorted
-- set: 16 bytes each, with the time at which the permit ends (server's clock, in ms; 922337203685477: never).
-- The id of a hold is 28 hex digits, and 4 more with the number of its permits. A permit is the 14 bytes of the id, and 2 with its number.

-- Never a member. Commands about it change nothing, and show whether the user may call them.
local NO_PERMIT = 'none'

-- The server's clock, in ms.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The number of free permits. nil: there is no semaphore. false: the key is not a number, or one that Lua does not have exactly.
local function free_permits(semaphore)
  local text = redis.call('GET', semaphore)
  if text then
    local is_number = text == '0' or string.find(text, '^%-?[1-9]%d*$') -- as INCRBY reads it
    local free = is_number and tonumber(text)
    return free and math.abs(free) < 2 ^ 53 and free or false
  end
end

-- The number of the permits of a hold, and a function that returns the n-th, from 0.
local function permits_of(id)
  local function number(first, last)
    return tonumber(string.sub(id, first, last), 16)
  end
  local of_hold = struct.pack('>I4I4I4I2', number(1, 8), number(9, 16), number(17, 24), number(25, 28))
  return number(29, 32), function(n)
    return of_hold .. string.char(math.floor(n / 256), n % 256)
  end
end

-- The time at which a permit ends. nil: it is not taken.
local function ends_of(taken, permit)
  return tonumber(redis.call('ZSCORE', taken, permit))
end

local function add(semaphore, permits)
  redis.call('INCRBY', semaphore, string.format('%.0f', permits))
end

-- Changes the number of free permits, then does the rest. If the user may not do that, the change is taken back: so nothing has changed, and
-- the command that takes it back is one that the user may call.
local function add_and(semaphore, permits, rest)
  add(semaphore, permits)
  local done, why = pcall(rest)
  if not done then
    add(semaphore, -permits)
    error(why, 0)
  end
end

-- Returns these permits, and publishes how many are free then. It publishes before, as the release of a lock does. A server without memory
-- permits the addition only after a removal. Without a semaphore (`free` is nil), the permits are removed, and nothing is added.
-- Returns the number of free permits, and the number of clients that received the message.
local function give_back(semaphore, taken, free, back, publish, channel)
  local told = 0
  if #back == 0 then
    return free, told
  end
  free = free and free + #back
  if free and free > 0 and publish ~= '' then
    told = redis.call(publish, channel, string.format('%.0f', free))
  end
  local function remove()
    for _, permit in ipairs(back) do
      redis.call('ZREM', taken, permit)
    end
  end
  if not free then
    remove()
  elseif not pcall(add_and, semaphore, #back, remove) then
    redis.call('ZREM', taken, NO_PERMIT)
    add_and(semaphore, #back, remove)
  end
  return free, told
end

-- Returns all permits whose time is over, and the number of free permits.
local function reap(semaphore, taken, free, now, publish, channel)
  local over = redis.call('ZRANGEBYSCORE', taken, '-inf', string.format('%.0f', now))
  return (give_back(semaphore, taken, free, over, publish, channel))
end
