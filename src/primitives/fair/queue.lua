-- Runs before each script of the fair lock, after holder.lua. The lock is the same hash as that of the plain lock. The waiters are in
-- a list, the next one first. A sorted set has the time until which each waiter keeps its place. A leasehold client renews its places
-- with each request. A JVM gets a place for five minutes, plus five minutes for each waiter before it; when it acquires the lock, it
-- subtracts five minutes from the places of all others.

-- For how long a place of this client lasts, how much time a notified head has to come, the time that a JVM subtracts, and for how
-- long the keys outlast the last known place: all in ms.
local PLACE, GRACE, JVM, DAY = 30000, 5000, 300000, 86400000
-- How many waiters one call may pass over, how many its sweeps may look at, and how many steps along the lists these may take to remove
-- waiters that stand behind others: the server does nothing else meanwhile.
local MOST = { passes = 4096, looks = 4096, steps = 1000000 }

-- The server's clock, in ms.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The keys of dead waiters expire. Both get the same time.
local function expire_after(queue, places, time)
  time = string.format('%.0f', time)
  redis.call('PEXPIRE', queue, time)
  redis.call('PEXPIRE', places, time)
end

-- A leasehold client has a UUID of version 8; Redisson's are of version 4.
local function ours(id)
  return string.byte(id, 15) == 56 -- '8'; string.sub would create a string each time
end

-- Returns the number of clients that received the message. Publishes nothing if there is no command.
local function publish(command, channel)
  return command == '' and 0 or redis.call(command, channel, '0')
end

-- What this call has left of MOST for a queue. One half is shared equally by the call's queues, so that a long one does not use up what a
-- short one needs. The other half is for all: most queues of a call need nothing. Several parts of a call may be about one queue.
local common, own = {}, {}
for of, most in pairs(MOST) do
  common[of] = most / 2
end
local function share(queue)
  if not own[queue] then
    local queues, seen = 0, {}
    for k = 2, #KEYS, 3 do
      queues = queues + (seen[KEYS[k]] and 0 or 1)
      seen[KEYS[k]] = true
    end
    own[queue] = {}
    for of, most in pairs(MOST) do
      own[queue][of] = math.floor(most / 2 / queues)
    end
  end
  return own[queue]
end
local function budget(queue, of)
  return share(queue)[of] + common[of]
end
local function spend(queue, of, count)
  local mine = share(queue)
  local part = math.min(mine[of], count)
  mine[of] = mine[of] - part
  common[of] = common[of] - (count - part)
end

-- Removes the head of the queue. In this order, as in all scripts: a waiter in the list without a place does no harm, but a place without
-- a waiter stays forever.
local function pass_over(queue, places, head)
  redis.call('ZREM', places, head)
  redis.call('LPOP', queue)
  spend(queue, 'passes', 1)
end

-- A waiter did not come in its time. Removes the next waiters of its client that are not subscribed, because this client has died. If one
-- is subscribed, it lives, and keeps the others. Does nothing if the present request is from this client, or if no message can be sent.
local function sweep(queue, places, command, channel, gone, me)
  local client = string.sub(gone, 1, 37)
  local looks = budget(queue, 'looks')
  if command == '' or me and string.sub(me, 1, 37) == client or looks <= 0 then
    return
  end
  local ids = redis.call('LRANGE', queue, 0, looks - 1)
  spend(queue, 'looks', #ids)
  local kept = 0 -- LREM walks past those
  for _, id in ipairs(ids) do
    if string.sub(id, 1, 37) ~= client then
      kept = kept + 1
    elseif kept > budget(queue, 'steps') or publish(command, channel .. ':' .. id) > 0 then
      return
    else
      redis.call('ZREM', places, id)
      redis.call('LREM', queue, 1, id)
      spend(queue, 'steps', kept)
    end
  end
end

-- Finds the waiter whose turn it is, when the lock is free. Notifies the head of the queue, unless it is `me`, and gives it GRACE to
-- come. Passes over heads that did not come. `fresh` means that the lock has become free only now, so no head can be late; then a
-- head whose place has expired also gets its turn, if it is subscribed. If the budget is spent, any head gets its turn, so that the call ends.
-- Returns the waiter (nil: none), and the ms that it has to come.
local function call_next(queue, places, command, channel, me, fresh)
  local now
  while true do
    local first = redis.call('LINDEX', queue, 0)
    if not first or first == me then
      return first or nil, 0
    end
    now = now or clock()
    local score = redis.call('ZSCORE', places, first)
    local left = tonumber(score or 0) - now
    local called = not fresh and left <= GRACE
    if called and left > 0 then
      return first, left
    end
    local spent = left <= 0 and budget(queue, 'passes') <= 0
    if not called or spent then
      local listens = publish(command, channel .. ':' .. first) > 0 and fresh
      if left > 0 or listens or spent then
        -- A JVM that listens keeps the time that it has: another JVM would remove it at the end of its turn.
        local turn = not listens and left > 0 and math.min(left, GRACE) or ours(first) and GRACE or math.max(left, GRACE)
        local till = string.format('%.0f', now + turn)
        if type(redis.pcall('ZADD', places, till, first)) == 'table' then
          -- The server never refuses ZREM for lack of memory, and after it not the other commands either. This one removes nothing.
          redis.call('ZREM', places, '')
          redis.call('ZADD', places, till, first)
        end
        if not score and redis.call('PTTL', places) < 0 then
          expire_after(queue, places, DAY) -- it had no place, and the key is new
        end
        return first, turn
      end
    end
    pass_over(queue, places, first)
    if called then
      sweep(queue, places, command, channel, first, me)
    end
  end
end
