-- Runs before each script that makes a change without an owner, such as a count-down. No state shows that such a change was made. So an
-- extra key shows it, the receipt of the request: it keeps the reply, for longer than the request can be under way.
-- All these scripts have the arguments nonce, number of the request, ms that the receipt lasts, a number, publish command ('': publish
-- nothing), channel.

-- Makes the change of a request once, and returns its reply. `decide` returns the reply. If there is something to change, it also returns
-- the message to publish (or false), and a function whose only command makes the change.
-- The server does not take a script back that it refuses half-way. So until the change is made, the receipt says that it has only begun, and
-- a second run begins again. Nothing needs to be undone after a refused command: that could be refused, too.
-- The receipt comes first, because a server without memory refuses it; after the first write it refuses none. The message comes before the
-- change, as in the release of a lock.
local function once(receipt, a, decide)
  local said = redis.call('GET', receipt)
  if said and said ~= 'begun' then
    return said
  end
  local reply, message, change = decide()
  if reply == 'conflict' then
    return reply
  end
  if change then
    redis.call('SET', receipt, 'begun', 'PX', ARGV[a + 3])
    if message and ARGV[a + 5] ~= '' then
      redis.call(ARGV[a + 5], ARGV[a + 6], message)
    end
    change()
  end
  redis.call('SET', receipt, reply, 'PX', ARGV[a + 3])
  return reply
end
