-- Renames keys that have another type than they should, or that block everything: a lock that never expires.
--
-- KEYS[1]     set-aside  list  a JSON record for each key that was set aside; a tick takes them
-- KEYS[2..]   the keys to look at, then as many names under which they are kept
-- ARGV[1] seconds for which a key that was set aside is kept
-- ARGV[2] records that are kept at most
-- ARGV[3..]   for each key its type; "lock" is a string that expires
--
-- Returns {key, type found, ...} of what was set aside.

local count = (#KEYS - 1) / 2
local found = {}
for i = 1, count do
  local key, right = KEYS[1 + i], ARGV[2 + i]
  local kind = redis.call('TYPE', key).ok
  local is_stuck = right == 'lock' and kind == 'string' and redis.call('PTTL', key) == -1
  if right == 'lock' then right = 'string' end
  if kind ~= 'none' and (kind ~= right or is_stuck) then
    redis.call('RENAME', key, KEYS[1 + count + i])
    redis.call('EXPIRE', KEYS[1 + count + i], ARGV[1])
    found[#found + 1] = key
    found[#found + 1] = kind
    redis.call('RPUSH', KEYS[1], cjson.encode({ key = key, found = kind }))
    redis.call('LTRIM', KEYS[1], -ARGV[2], -1)
  end
end
return found
