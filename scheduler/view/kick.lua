-- Requests a tick: wakes the process that waits for a kick, or sends the message for a tick. An earlier kick since which
-- no tick has begun counts for this one, too.
--
-- KEYS[1] kick    string  the flag of a kick; expires
-- KEYS[2] ticks   list    the queue of messages for ticks
-- KEYS[3] waits   string  the mark of a process that waits for a kick; expires
-- KEYS[4] woken   list    one entry, by which that process is woken; expires
-- ARGV[1] ms after which the next kick sends a message in any case
-- ARGV[2] the message
--
-- Returns 1; an error when the queue takes no message, and then the flag is not set.

if redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[1]) then
  if redis.call('DEL', KEYS[3]) == 1 then
    redis.call('LPUSH', KEYS[4], 1)
    redis.call('PEXPIRE', KEYS[4], ARGV[1])
    return 1
  end
  local sent = redis.pcall('LPUSH', KEYS[2], ARGV[2])
  if type(sent) == 'table' and sent.err then
    redis.call('DEL', KEYS[1])
    return sent
  end
end
return 1
