-- Hands the lock over from one hold, at its last acquisition, to another hold of the same client. The new hold gets a lease and a
-- token of its own. Publishes nothing. Safe to run twice: the second run finds the new hold in place, and its token.
-- KEYS   lock, token
-- ARGV   nonce, hold id, lease ms of the new hold, (unused), id of the new hold
-- Reply  handed, token | handed before, token: the new hold was there already | gone: there is no such hold
--        deeper, count: the hold has more than one acquisition, nothing changed
return serve(function(k, a)
  local lock, token, id, lease, heir = KEYS[k + 1], KEYS[k + 2], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5]
  local answer = stays(lock, id, lease, heir)
  if not answer then
    redis.call('INCR', token)
    move(lock, id, lease, heir)
    answer = 'handed'
  end
  return string.sub(answer, 1, 6) == 'handed' and answer .. ' ' .. token_of(token) or answer
end)
