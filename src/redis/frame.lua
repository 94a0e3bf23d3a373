-- The frame before every script: runs a step once for each part of a gathered call, so that a failing part leaves
-- the others alone, and puts each part's nonce in front of its answer.
-- ARGV[1]  the number of parts. KEYS and the rest of ARGV are shared out evenly, each part's ARGV with its nonce first.
-- Reply    {nonce, code, value, nonce, code, value, ...}; code `error` carries the server's words as its value.
-- step(k, a)  the part's keys begin at KEYS[k + 1]; its nonce is ARGV[a + 1], its arguments begin at ARGV[a + 2].
local function serve(step)
  local parts = tonumber(ARGV[1])
  local keys, args = #KEYS / parts, (#ARGV - 1) / parts
  local replies = {}
  for part = 0, parts - 1 do
    local a = 1 + part * args
    local ran, code, value = pcall(step, part * keys, a)
    if not ran then
      -- Redis 7 raises a table or a string, depending on where; older servers a string.
      code, value = 'error', type(code) == 'table' and code.err or tostring(code)
    end
    replies[part * 3 + 1] = ARGV[a + 1]
    replies[part * 3 + 2] = code
    replies[part * 3 + 3] = value or 0
  end
  return replies
end
