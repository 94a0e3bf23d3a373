-- Runs before each script of a latch. A count-down has no owner. So if a request is sent again, an extra key shows that it has run: its
-- receipt, with the reply. The receipt lasts for longer than the request can be under way.

-- `decide` gets the latch and its count. It returns the reply, and if it changes something also the message and the change. The receipt
-- comes first, because the server may refuse it for lack of memory. It publishes before the change, as the release of a lock does.
local function once(k, a, decide)
  local latch, receipt = KEYS[k + 1], KEYS[k + 2]
  local said = redis.call('GET', receipt)
  if said then
    return said
  end
  local count = count_of(latch)
  if count == false then
    return 'conflict'
  end
  local reply, message, change = decide(latch, count)
  redis.call('SET', receipt, reply, 'PX', ARGV[a + 3])
  if message and ARGV[a + 5] ~= '' then
    redis.call(ARGV[a + 5], ARGV[a + 6], message)
  end
  if change then
    change()
  end
  return reply
end
