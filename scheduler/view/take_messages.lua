-- Takes messages that wait in a queue, as far as they are short and of some tasks, and stores kombu's record of each.
--
-- A message leaves the queue in the same step in which its record is stored, so a worker that is killed loses none.
--
-- KEYS[1] the queue      list        messages; the oldest is the last one
-- KEYS[2] unacked        hash        delivery tag -> [message, exchange, routing key], of messages that workers hold
-- KEYS[3] unacked_index  sorted set  delivery tag -> seconds at which a worker took the message
-- ARGV[1] the most messages
-- ARGV[2] the most bytes of a message
-- ARGV[3] the present time in seconds
-- ARGV[4…] the names of the tasks
--
-- A message that is longer, that names none of the tasks, or that has no delivery tag, ends the list of those that are
-- taken. Returns the delivery tag and the text of each message, one after the other, oldest message first.

local function is_wanted(message)
  if not message or #message > tonumber(ARGV[2]) then
    return false
  end
  for number = 4, #ARGV do
    if string.find(message, '"' .. ARGV[number] .. '"', 1, true) then
      return true
    end
  end
  return false
end

local function find_delivery(message)
  local is_read, envelope = pcall(cjson.decode, message)
  local properties = is_read and type(envelope) == 'table' and envelope.properties
  local info = type(properties) == 'table' and properties.delivery_info
  if type(info) ~= 'table' or type(properties.delivery_tag) ~= 'string' then
    return nil
  end
  if type(info.exchange) ~= 'string' or type(info.routing_key) ~= 'string' then
    return nil
  end
  return properties.delivery_tag, cjson.encode(info.exchange), cjson.encode(info.routing_key)
end

local taken = {}
for _ = 1, tonumber(ARGV[1]) do
  local message = redis.call('LRANGE', KEYS[1], -1, -1)[1]
  if not is_wanted(message) then
    break
  end
  local tag, exchange, routing_key = find_delivery(message)
  if not tag then
    break
  end
  redis.call('HSET', KEYS[2], tag, '[' .. message .. ',' .. exchange .. ',' .. routing_key .. ']')
  redis.call('ZADD', KEYS[3], ARGV[3], tag)
  redis.call('RPOP', KEYS[1])
  table.insert(taken, tag)
  table.insert(taken, message)
end
return taken
