-- Returns the number of stored rows, which a reader compares with its copy.
--
-- KEYS as in publish.lua, from view:generation to view:run_times
-- ARGV[1] generation of the reader's copy
--
-- Returns {sequence, slots, reservations that are not over, holds, accounts, run times}; nil when there is no valid view
-- or it is another generation.

local generation = redis.call('GET', KEYS[1])
if generation ~= ARGV[1] or not is_of_this_server(generation) then return nil end

-- view:leaving contains tombstones and ended reservations. Each tombstone is one field of view:gone.
local over = redis.call('ZCARD', KEYS[6]) - redis.call('HLEN', KEYS[5])
return {
  tonumber(redis.call('GET', KEYS[3])),
  redis.call('HLEN', KEYS[7]),
  redis.call('HLEN', KEYS[8]) - over,
  redis.call('HLEN', KEYS[9]),
  redis.call('HLEN', KEYS[10]),
  redis.call('HLEN', KEYS[11]),
}
