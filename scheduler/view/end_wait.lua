-- Removes the mark of the process that waited for a kick.
--
-- KEYS[1] waits   string  the mark
-- KEYS[2] woken   list    one entry, by which that process is woken
--
-- Returns 1 if a kick came, which then sent no message, else 0.

redis.call('DEL', KEYS[1])
return redis.call('DEL', KEYS[2])
