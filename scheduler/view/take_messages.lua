-- Takes messages that wait in a queue, as far as they are short and of some tasks.
--
-- KEYS[1] the queue  list  messages; the oldest is the last one
-- ARGV[1] the most messages
-- ARGV[2] the most bytes of a message
-- ARGV[3…] the names of the tasks
--
-- A message that is longer, or that names none of the tasks, ends the list of those that are taken.
-- Returns the messages, oldest first.

local function is_wanted(message)
  if not message or #message > tonumber(ARGV[2]) then
    return false
  end
  for number = 3, #ARGV do
    if string.find(message, '"' .. ARGV[number] .. '"', 1, true) then
      return true
    end
  end
  return false
end

local taken = {}
for number = 1, tonumber(ARGV[1]) do
  if not is_wanted(redis.call('LRANGE', KEYS[1], -1, -1)[1]) then
    break
  end
  taken[number] = redis.call('RPOP', KEYS[1])
end
return taken
