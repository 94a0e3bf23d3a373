-- Takes so many permits, or none. Runs once: the receipt has their number, or `void` after a release. A retry makes it last longer.
-- KEYS   semaphore, receipt
-- ARGV   nonce, hold id, ms that the receipt lasts, number of permits, (unused), channel
-- Reply  granted | busy, -1. Also if there is no semaphore | lost: it was released before | conflict: not a semaphore
return serve(function(k, a)
  local said = redis.call('GET', KEYS[k + 2])
  if said then
    redis.call('SET', KEYS[k + 2], said, 'PX', ARGV[a + 3])
    return said == 'void' and 'lost' or 'granted'
  end
  local free, wanted = count_of(KEYS[k + 1]), tonumber(ARGV[a + 4])
  if free == false then
    return 'conflict'
  elseif not free or free < wanted then
    return 'busy -1 '
  end
  change(k, a, free, -wanted, ARGV[a + 4], '')
  return 'granted'
end)
