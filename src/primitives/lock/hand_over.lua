-- Hands the lock over from one hold, at its last acquisition, to another hold of the same client. The new hold gets a lease of its
-- own. Publishes nothing. Safe to run twice: the second run finds the new hold in place.
-- KEYS   lock
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold
-- Reply  handed | handed before: the new hold was there already | gone: there is no such hold
--        deeper, count: the hold has more than one acquisition, nothing changed
return serve(function(k, a)
  local lock, id, lease, heir = KEYS[k + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5]
  local answer = stays(lock, id, lease, heir)
  if not answer then
    move(lock, id, lease, heir)
  end
  return answer or 'handed'
end)
