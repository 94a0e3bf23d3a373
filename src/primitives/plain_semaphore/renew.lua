-- Says whether a hold that no caller has seen has its permits. Changes nothing.
-- KEYS   semaphore, receipt
-- Reply  kept | gone
return serve(function(k)
  local said = redis.call('GET', KEYS[k + 2])
  return said and said ~= 'void' and 'kept' or 'gone'
end)
