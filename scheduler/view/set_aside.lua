-- Renames keys that have another type than they should, or contents that block everything.
--
-- KEYS[1]     set-aside  list  a JSON record for each key that was set aside; a tick removes those that it has committed
-- KEYS[2..]   the keys to look at, then as many names under which they are kept
-- ARGV[1] seconds for which a key that was set aside is kept
-- ARGV[2] records that are kept at most
-- ARGV[3..]   for each key its type; "lock": a string that expires; "unreadable": what the caller found unreadable
--
-- Returns {key, what was found, ...} of what was set aside: a type, or "unreadable".

local time = redis.call('TIME')
local count = (#KEYS - 1) / 2
local found = {}
local KINDS = { slots = true, reservations = true, holds = true, accounts = true, gone = true }
local NUMBERS = { ['view:sequence'] = true, ['queue:count'] = true }

-- Every publish adds the entry "<sequence>-0": Redis refuses one that is not above the last.
local function is_beyond_sequence(key)
  local sequence = tonumber(redis.call('GET', (string.gsub(key, 'deltas$', 'sequence'))))
  -- Without a sequence there is no valid view, and the next rebuild begins both again.
  if not sequence then return false end
  local after = string.format('%d-1', sequence)
  return #redis.call('XRANGE', key, after, '+', 'COUNT', 1) > 0
end

local function has_unknown_name(key)
  for _, name in ipairs(redis.call('ZRANGE', key, 0, 99)) do
    if not KINDS[string.match(name, '^(%a+)/') or ''] then return true end
  end
  return false
end

local function is_unreadable(key, right)
  local name = string.match(key, '%a+:%a+$') or ''
  if right == 'lock' then return redis.call('PTTL', key) == -1 end
  if name == 'view:deltas' then return is_beyond_sequence(key) end
  if name == 'view:leaving' then return has_unknown_name(key) end
  return NUMBERS[name] and not tonumber(redis.call('GET', key))
end

local function set_aside(key, kept, what)
  redis.call('RENAME', key, kept)
  redis.call('EXPIRE', kept, ARGV[1])
  found[#found + 1] = key
  found[#found + 1] = what
  -- With its time: records of the same key differ.
  redis.call('RPUSH', KEYS[1], cjson.encode({ key = key, found = what, at = time[1] .. '.' .. time[2] }))
  redis.call('LTRIM', KEYS[1], -ARGV[2], -1)
end

for i = 1, count do
  local key, right = KEYS[1 + i], ARGV[2 + i]
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' then
    if right == 'unreadable' then
      set_aside(key, KEYS[1 + count + i], right)
    elseif kind ~= (right == 'lock' and 'string' or right) then
      set_aside(key, KEYS[1 + count + i], kind)
    elseif is_unreadable(key, right) then
      set_aside(key, KEYS[1 + count + i], right == 'lock' and kind or 'unreadable')
    end
  end
end
return found
