-- Returns the number of free permits. Changes nothing.
-- KEYS   semaphore
-- Reply  held, the number | free: there is no semaphore | conflict: not a semaphore
return serve(function(k)
  local free = count_of(KEYS[k + 1])
  if free == false then
    return 'conflict'
  end
  return free and string.format('held %.0f', free) or 'free'
end)
