-- Before each script of the fair lock, after holder.lua. The lock is the plain one's hash. Those who wait stand in a list, the
-- next first; a sorted set says until when each has its place. A client of ours keeps its places by coming back, a JVM comes
-- in with five minutes for itself and for each before it, and takes as much from all when it gets the lock.

-- How long a place of ours lasts, how long a head that was called has to come, and what a JVM takes off: all in ms.
local PLACE, GRACE, JVM = 30000, 5000, 300000

-- The server's clock, in ms.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A client of ours has a UUID of version 8, Redisson's are of version 4.
local function ours(id)
  return string.sub(id, 15, 15) == '8'
end

-- How many were told; nothing is published where the client has no such command.
local function publish(command, channel)
  return command == '' and 0 or redis.call(command, channel, '0')
end

-- The lock is free: whose turn is it? Calls the head, unless it is `me`, and gives it GRACE to come; passes over those that did
-- not. `fresh`: free only now, so that nobody can be late. Then also one whose place is void gets its turn, if it listens.
-- Answers who (nil: nobody waits), until when it has its turn, how many heard.
local function call_next(queue, places, command, channel, me, fresh)
  local now = clock()
  while true do
    local first = redis.call('LINDEX', queue, 0)
    if not first or first == me then
      return first or nil, now, 0
    end
    local till = tonumber(redis.call('ZSCORE', places, first) or 0)
    local called = not fresh and till <= now + GRACE
    if called and till > now then
      return first, till, 0
    end
    if not called then
      local heard = publish(command, channel .. ':' .. first)
      local listens = fresh and heard > 0
      if till > now or listens then
        local turn = listens and math.max(till, now + GRACE) or math.min(till, now + GRACE)
        redis.call('ZADD', places, string.format('%.0f', turn), first)
        return first, turn, heard
      end
    end
    -- In this order, as everywhere: one in line without a place costs nothing, a place that nobody stands at stays for ever.
    redis.call('ZREM', places, first)
    redis.call('LPOP', queue)
  end
end
