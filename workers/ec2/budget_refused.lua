-- Lowers the gain of a bucket after EC2 refused a call because of its rate, and empties the bucket.
--
-- KEYS[1] ec2:<region>  hash  as in budget.lua
-- ARGV: the name of the bucket, the share of its gain that it gets back in a second, by how much its present share is
--       multiplied, the smallest share, the ms for which further refusals count as the same one
--
-- Returns the share as text, or the present one if the last refusal was the same one.

local FULL_AFTER_MS = 60000
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local name, step, cut, least, same = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local held = redis.call('HMGET', KEYS[1], name .. ':factor', name .. ':cut')
local factor = 1
if held[1] and tonumber(held[2]) <= now then
  factor = math.min(1, held[1] + (now - held[2]) / 1000 * step)
  if now - held[2] < same then return string.format('%.6f', factor) end
end
factor = math.max(least, factor * cut)
local at = string.format('%.3f', now)
redis.call('HSET', KEYS[1], name, 0, name .. ':at', at, name .. ':factor', string.format('%.6f', factor), name .. ':cut', at)
redis.call('PEXPIRE', KEYS[1], FULL_AFTER_MS)
return string.format('%.6f', factor)
