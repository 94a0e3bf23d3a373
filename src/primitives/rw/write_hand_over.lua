-- Hands the write lock over from one hold, at its last acquisition, to another hold of the same client. The new hold gets a lease of its
-- own, and its mark is removed. Publishes nothing. Does nothing while the holder also reads. Safe to run twice: the second run finds
-- the new hold in place.
-- KEYS   lock
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold
-- Reply  handed | handed before: the new hold was there already | gone: there is no such hold
--        deeper, count: the hold has more than one acquisition, or its owner also reads; nothing changed
return serve(function(k, a)
  local lock, id, lease, heir = KEYS[k + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5]
  local answer = stays(lock, id, lease, heir)
  if not answer and redis.call('HLEN', lock) ~= 2 then
    answer = 'deeper 1'
  elseif not answer then
    move(lock, id, lease, heir)
    -- The new holder may have left a mark while it waited, which would keep others out of the free lock. Not one of KEYS, so that no
    -- hand-over waits for it while a cluster moves the slot. If it cannot be read, it expires.
    local mark = 'leasehold_rwlock_waits:' .. (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}')
    if redis.pcall('GET', mark) == heir then
      redis.pcall('DEL', mark)
    end
  end
  return answer or 'handed'
end)
