-- Takes one token from each of the given buckets, or from none of them.
--
-- KEYS[1] ec2:<region>  hash  "<bucket>" -> its tokens, "<bucket>:at" -> when it had them (ms). A missing bucket is
--                             full; all buckets are full before the hash expires.
--                             "<bucket>:factor" -> the share of its gain that the bucket had after the last refusal,
--                             "<bucket>:cut" -> when that was (ms). Missing: the bucket gains all.
-- ARGV[1] the share of its gain that a bucket gets back in a second
-- then for each bucket: name, tokens gained a second, size, tokens that must be left in it
--
-- Returns 0 if the tokens were taken, else the number of ms after which to try again.

local FULL_AFTER_MS = 60000
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local step = tonumber(ARGV[1])
local wait, levels = 0, {}
for first = 2, #ARGV, 4 do
  local name, gained = ARGV[first], tonumber(ARGV[first + 1])
  local size, left = tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3])
  local held = redis.call('HMGET', KEYS[1], name, name .. ':at', name .. ':factor', name .. ':cut')
  -- A time in the future was written before the clock was set back: a factor from then does not count.
  if held[3] and tonumber(held[4]) <= now then
    gained = gained * math.min(1, held[3] + (now - held[4]) / 1000 * step)
  end
  local level = size
  -- As above: the gain since then is unknown, so count none.
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
