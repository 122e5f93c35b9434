-- Deletes the view and starts a new generation. From now on publishes merge with the rows that the rebuild writes.
--
-- KEYS as in publish.lua, from view:generation to view:run_times
-- ARGV[1] random part of the new generation
--
-- Returns the new generation.

local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local generation = ARGV[1] .. ':' .. run_id
redis.call('UNLINK', unpack(KEYS))
redis.call('SET', KEYS[2], generation)
redis.call('SET', KEYS[3], 0)
return generation
