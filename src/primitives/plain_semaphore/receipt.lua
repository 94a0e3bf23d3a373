-- Runs before each script of a plain semaphore that changes it. Nobody owns its permits. So if a request is sent again, an extra key shows
-- that it has run: its receipt. The receipt lasts for longer than the request can be under way.

local function add(semaphore, permits)
  redis.call('INCRBY', semaphore, string.format('%.0f', permits))
end

-- Adds permits to those that are free (below zero: removes some), with a receipt. If the user may do only one of the two, nothing changes:
-- a receipt alone would tell a retry that the request has run. Publishes before, as the release of a lock does.
-- KEYS   semaphore, receipt
-- ARGV   nonce, number of the request, ms that the receipt lasts, (unused), publish command ('': publish nothing), channel
local function change(k, a, free, permits, said, publish)
  local semaphore = KEYS[k + 1]
  local left = (free or 0) + permits
  if permits > 0 and left > 0 and publish ~= '' then
    redis.call(publish, ARGV[a + 6], string.format('%.0f', left))
  end
  add(semaphore, permits)
  local done, why = pcall(redis.call, 'SET', KEYS[k + 2], said, 'PX', ARGV[a + 3])
  if not done then
    add(semaphore, -permits)
    if not free then
      redis.call('DEL', semaphore)
    end
    error(why, 0)
  end
end
