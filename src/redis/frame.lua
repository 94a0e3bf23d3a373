-- The frame before every script: runs a step once for each part of a gathered call, so that a failing part leaves
-- the others alone, and puts each part's nonce in front of its answer.
-- ARGV[1]  the number of parts. KEYS and the rest of ARGV are shared out evenly, each part's ARGV with its nonce first.
-- Reply    'nonce code words...', a list of these for several parts; code `error` is followed by the server's words.
-- step(k, a)  the part's keys begin at KEYS[k + 1]; its nonce is ARGV[a + 1], its arguments begin at ARGV[a + 2].
-- What is handed on to redis.call stays the string that it came as: numbers are printed, which takes longer than the call.
local function answered(step, k, a)
  local ran, answer = pcall(step, k, a)
  if not ran then
    -- Redis 7 raises a table or a string, depending on where; older servers a string.
    answer = 'error ' .. (type(answer) == 'table' and answer.err or tostring(answer))
    -- Later servers say which command it was, and earlier ones in which line. 7.0 neither: so all that may be called are tried.
    if redis.acl_check_cmd and string.find(answer, "can't run this command", 1, true) then
      local commands = [[DEL EXISTS GET HDEL HEXISTS HGET HGETALL HINCRBY HKEYS HLEN HSET INCR LINDEX LPOP LPOS LRANGE LREM
        PEXPIRE PTTL PUBLISH RPUSH SET SPUBLISH TIME ZADD ZREM ZSCORE]]
      for command in string.gmatch(commands, '%u+') do
        if not redis.acl_check_cmd(command) then
          answer = answer .. ' +' .. string.lower(command)
        end
      end
    end
  end
  return ARGV[a + 1] .. ' ' .. answer
end
local function serve(step)
  if ARGV[1] == '1' then
    return answered(step, 0, 1)
  end
  local parts = tonumber(ARGV[1])
  local keys, args = #KEYS / parts, (#ARGV - 1) / parts
  local replies = {}
  for part = 0, parts - 1 do
    replies[part + 1] = answered(step, part * keys, 1 + part * args)
  end
  return replies
end
