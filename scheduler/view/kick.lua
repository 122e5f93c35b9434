-- Requests a tick: sends the message for a tick, unless an earlier kick has sent one and no tick has begun since.
--
-- KEYS[1] kick   string  the flag of a kick; expires
-- KEYS[2] ticks  list    the queue of messages for ticks
-- ARGV[1] ms after which the next kick sends a message in any case
-- ARGV[2] the message
--
-- Returns 1; an error when the queue takes no message, and then the flag is not set.

if redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[1]) then
  local sent = redis.pcall('LPUSH', KEYS[2], ARGV[2])
  if type(sent) == 'table' and sent.err then
    redis.call('DEL', KEYS[1])
    return sent
  end
end
return 1
