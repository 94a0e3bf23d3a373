-- Moves the last acquisition straight to another hold of the same client, with a lease of its own; nothing is published.
-- Safe to run twice: the second run finds the new hold in place.
-- KEYS   lock
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold, channel
-- Reply  handed | handed before: the new hold was there already | deeper, count: not at its last acquisition, nothing changed | gone: there is no such hold
return serve(function(k, a)
  local lock, id, lease, heir = KEYS[k + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5]
  local answer = stays(lock, id, lease, heir)
  if not answer then
    move(lock, id, lease, heir)
  end
  return answer or 'handed'
end)
