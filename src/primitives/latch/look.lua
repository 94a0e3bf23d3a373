-- Says whether the latch is open. Changes nothing.
-- KEYS   latch
-- Reply  held, the count | free: the count is zero, or there is no latch | conflict: the key is not a latch
return serve(function(k)
  local count = count_of(KEYS[k + 1])
  if count == false then
    return 'conflict'
  end
  return count and count > 0 and string.format('held %.0f', count) or 'free'
end)
