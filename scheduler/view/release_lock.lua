-- Lets go of the leader lock if it is ours. The mark stays until the next take, so that this may run twice.
--
-- KEYS[1] leader  string  the holder's token
-- KEYS[2] again   string  there while somebody asked for a tick that the holder has not begun
-- ARGV[1] our token
--
-- Returns 1 when nobody holds the lock now and somebody left the mark, else 0.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return redis.call('EXISTS', KEYS[2])
