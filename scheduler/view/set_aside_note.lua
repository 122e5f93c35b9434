-- Moves the note of a message that cannot be read out of kombu's tables.
--
-- KEYS[1] set-aside      list  records, as in set_aside.lua
-- KEYS[2] unacked        hash  delivery tag -> note
-- KEYS[3] unacked_index  zset  delivery tag -> time of its delivery
-- KEYS[4] set-aside:unacked:contents  hash  delivery tag -> note
-- ARGV[1] seconds for which the note is kept
-- ARGV[2] most records that are kept
-- ARGV[3] delivery tag

local note = redis.call('HGET', KEYS[2], ARGV[3])
redis.call('ZREM', KEYS[3], ARGV[3])
if not note then return 0 end
redis.call('HSET', KEYS[4], ARGV[3], note)
redis.call('EXPIRE', KEYS[4], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[3])
local time = redis.call('TIME')
redis.call('RPUSH', KEYS[1], cjson.encode({ key = KEYS[2], found = 'unreadable', at = time[1] .. '.' .. time[2] }))
redis.call('LTRIM', KEYS[1], -ARGV[2], -1)
return 1
