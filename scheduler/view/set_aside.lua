-- Renames keys that have a wrong type, or contents that block every write.
--
-- KEYS[1]     set-aside  list  a JSON record for each renamed key; a tick removes the records that it has committed
-- KEYS[2..]   the keys to check, then for each of them its new name
-- ARGV[1] seconds for which a renamed key is kept
-- ARGV[2] most records that are kept
-- ARGV[3..]   for each key its type; "lock": a string that expires; "unreadable": the caller found it unreadable
--
-- Returns {key, found type or "unreadable", ...} of the renamed keys.

local time = redis.call('TIME')
local count = (#KEYS - 1) / 2
local found = {}
local KINDS = { slots = true, reservations = true, holds = true, accounts = true, run_times = true, gone = true }
local NUMBERS = { ['view:sequence'] = true, ['queue:count'] = true }

-- Every publish adds the entry "<sequence>-0". Redis refuses an entry that is not above the last one.
local function is_beyond_sequence(key)
  local sequence = tonumber(redis.call('GET', (string.gsub(key, 'deltas$', 'sequence'))))
  -- Without a sequence there is no valid view, and the next rebuild writes both keys again.
  if not sequence then return false end
  local after = string.format('%d-1', sequence)
  return #redis.call('XRANGE', key, after, '+', 'COUNT', 1) > 0
end

local function has_unknown_name(key)
  for _, name in ipairs(redis.call('ZRANGE', key, 0, 99)) do
    if not KINDS[string.match(name, '^([%a_]+)/') or ''] then return true end
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
  -- The time makes records of the same key differ.
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
