-- Stores the difference between cluster time and the clock of this Redis.
--
-- KEYS[1]  <prefix>clock  string  cluster time minus the time of this Redis, in seconds
-- ARGV[1]  cluster time now

local time = redis.call('TIME')
local own = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('SET', KEYS[1], string.format('%.6f', tonumber(ARGV[1]) - own))
