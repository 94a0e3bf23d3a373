-- Returns the holders of the lock, and whether they read or write. Changes nothing.
-- KEYS   lock
-- ARGV   nonce, (unused) x 4, channel
-- Reply  held, then one line for each hold: count, ms left (-1: never expires), id | free | conflict: not a read-write lock
return serve(function(k)
  local lock, mode = KEYS[k + 1], mode_of(KEYS[k + 1])
  if mode == 'free' or mode == 'conflict' then
    return mode
  end
  local all, end_of_all = {}, redis.call('PTTL', lock)
  local fields = redis.call('HGETALL', lock)
  for n = 1, #fields, 2 do
    local id, count = fields[n], tonumber(fields[n + 1])
    if count and not is_over(lock, id) then
      local left = writes(id) and left_of_writer(lock, id) or left_of(tagged(lock), id, count)
      if left >= -1 or not ours(id) then
        all[#all + 1] = string.format('%.0f %.0f ', count, left == -2 and end_of_all or left) .. id
      end
    end
  end
  return #all == 0 and 'free' or 'held ' .. table.concat(all, '\n')
end)
