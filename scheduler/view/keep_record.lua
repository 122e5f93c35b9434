-- Stores the cluster's identity and the highest numbers. Numbers are compared as texts, because Lua would round
-- numbers above 2^53. Keys of another type, and a text that is no identity, are replaced.
--
-- KEYS[1] cluster  string  identity of the cluster
-- KEYS[2] highest  hash    term, token: the highest that were used; restoring: exists while a restore is under way
-- ARGV[1] identity
-- ARGV[2] term
-- ARGV[3] token
--
-- Returns the stored identity. The numbers are raised only if it is the given one.

local function read(command, ...)
  local answer = redis.pcall(command, ...)
  if type(answer) == 'table' and answer.err then
    redis.call('DEL', (...))
    return false
  end
  return answer
end

local function is_higher(new, old)
  if not old or not string.match(old, '^%d+$') then return true end
  return #new > #old or (#new == #old and new > old)
end

local kept = read('GET', KEYS[1])
if not kept or #kept ~= 32 or string.find(kept, '[^0-9a-f]') then
  redis.call('SET', KEYS[1], ARGV[1])
  kept = ARGV[1]
end
if kept ~= ARGV[1] then return kept end
for number, field in ipairs({'term', 'token'}) do
  if is_higher(ARGV[number + 1], read('HGET', KEYS[2], field)) then
    redis.call('HSET', KEYS[2], field, ARGV[number + 1])
  end
end
return kept
