-- Takes messages that wait in a queue, as far as they are short.
--
-- KEYS[1] the queue  list  messages; the oldest is the last one
-- ARGV[1] the most messages
-- ARGV[2] the most bytes of a message; a longer one ends the list of those that are taken
--
-- Returns the messages, oldest first.

local taken = {}
for number = 1, tonumber(ARGV[1]) do
  local message = redis.call('LRANGE', KEYS[1], -1, -1)[1]
  if not message or #message > tonumber(ARGV[2]) then
    break
  end
  taken[number] = redis.call('RPOP', KEYS[1])
end
return taken
