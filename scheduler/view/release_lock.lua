-- Releases the leader lock if the caller has it. The mark stays until the next take, so this may run twice.
--
-- KEYS[1] leader  string  the holder's token
-- KEYS[2] again   string  the mark: a process requested a tick that the holder has not begun
-- ARGV[1] the caller's token
--
-- Returns 1 when the lock is free now and the mark exists, else 0.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return redis.call('EXISTS', KEYS[2])
