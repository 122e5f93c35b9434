-- Takes a token of each of these buckets, or of none.
--
-- KEYS[1] ec2:<region>  hash  "<bucket>" -> its tokens, "<bucket>:at" -> when it had them (ms); a bucket that is
--                             missing is full, and all are full before the hash expires
-- ARGV of each bucket: its name, tokens gained a second, its size, tokens that this call has to leave in it
--
-- Returns 0 when they were taken, else after how many ms to ask again.

local FULL_AFTER_MS = 60000
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local wait, levels = 0, {}
for first = 1, #ARGV, 4 do
  local name, gained = ARGV[first], tonumber(ARGV[first + 1])
  local size, left = tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3])
  local held = redis.call('HMGET', KEYS[1], name, name .. ':at')
  local level = size
  -- A time that is yet to come was written before the clock was put back: nobody knows what has been gained since.
  if held[1] and tonumber(held[2]) <= now then
    level = math.min(size, held[1] + (now - held[2]) / 1000 * gained)
  end
  wait = math.max(wait, (left + 1 - level) / gained * 1000)
  levels[name] = level - 1
end
if wait > 0 then return math.ceil(wait) end
for name, level in pairs(levels) do
  redis.call('HSET', KEYS[1], name, string.format('%.6f', level), name .. ':at', string.format('%.3f', now))
end
redis.call('PEXPIRE', KEYS[1], FULL_AFTER_MS)
return 0
