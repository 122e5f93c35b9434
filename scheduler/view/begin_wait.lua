-- Marks that a process waits for a kick, unless a kick has sent the message for a tick and no tick has begun since.
--
-- KEYS[1] kick    string  the flag of a kick
-- KEYS[2] waits   string  the mark; expires
-- KEYS[3] woken   list    one entry, by which that process is woken
-- ARGV[1] ms after which the mark expires
--
-- Returns 1 if the process may wait, else 0.

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('DEL', KEYS[3])
redis.call('SET', KEYS[2], 1, 'PX', ARGV[1])
return 1
