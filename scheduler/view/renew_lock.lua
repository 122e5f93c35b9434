-- Holds the leader lock for another whole time, if it still is ours.
--
-- KEYS[1] leader  string  the holder's token
-- ARGV[1] our token
-- ARGV[2] ms for which it is held
--
-- Returns 1, or 0 when it is not ours any more.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
