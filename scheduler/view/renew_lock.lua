-- Extends the leader lock to its whole time, if the caller still has it.
--
-- KEYS[1] leader  string  the holder's token
-- ARGV[1] the caller's token
-- ARGV[2] ms for which it is held
--
-- Returns 1, or 0 when the caller does not have it any more.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
