-- The frame around every script. One call carries one or more parts. The frame runs the step once for each part, so a failing part
-- does not affect the others. It puts the nonce of each part before its reply.
-- ARGV[1]  the number of parts. KEYS and the rest of ARGV are divided evenly among the parts; the ARGV of a part begin with its nonce.
-- Reply    'nonce code words...', or a list of these for several parts; after the code `error` comes the error message of the server.
-- step(k, a)  the keys of the part begin at KEYS[k + 1]; its nonce is ARGV[a + 1], its arguments begin at ARGV[a + 2].
-- Scripts pass arguments to redis.call as strings, without a conversion: formatting a number takes longer than the call itself.
local function answered(step, k, a)
  local ran, answer = pcall(step, k, a)
  if not ran then
    -- Redis 7 raises a table or a string, depending on the place; older servers raise a string.
    answer = 'error ' .. (type(answer) == 'table' and answer.err or tostring(answer))
    -- Later servers name the command, earlier ones the line. Redis 7.0 names neither, so this tries all commands that scripts use.
    if redis.acl_check_cmd and string.find(answer, "can't run this command", 1, true) then
      local commands = [[DECR DEL EXISTS GET HDEL HEXISTS HGET HGETALL HINCRBY HKEYS HLEN HSET INCR INCRBY LINDEX LPOP LPOS LRANGE
        LREM PEXPIRE PEXPIRETIME PTTL PUBLISH RPUSH SET SPUBLISH TIME ZADD ZCARD ZRANGE ZRANGEBYSCORE ZREM ZSCORE]]
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
