-- Lays changed rows over the view: of two copies the newer stays, each accepted change is one delta.
--
-- KEYS[1] view:generation    string  the valid view; absent while there is none
-- KEYS[2] view:building      string  the generation that a rebuild is at
-- KEYS[3] view:sequence      string  number of the last delta, without gaps within a generation
-- KEYS[4] view:deltas        stream  "<sequence>-0" -> kind of the row, or "gone" = JSON of the change
-- KEYS[5] view:gone          hash    "<kind>/<id>" -> version of the tombstone
-- KEYS[6] view:leaving       zset    "<hash>/<field>" that goes at that time (ms): tombstones, ended reservations
-- KEYS[7] view:slots         hash    id -> JSON of the row, "version" and "marked_at" first
-- KEYS[8] view:reservations  hash    the same
-- KEYS[9] view:holds         hash    the same
--
-- ARGV[1] "" for a publish; a rebuild's own generation for its rows, which make no deltas
-- ARGV[2] ms for which tombstones and ended reservations are kept
-- ARGV[3] how many deltas are kept, about
-- ARGV[4...] six a change: kind, id, version, marked_at, "row" or "over" or "gone", JSON
--
-- Returns 1, or 0 when there is no valid view (nor one being built), or the rebuild is another's by now.

local own_rebuild = ARGV[1]
local building = redis.call('GET', KEYS[2])
if own_rebuild ~= '' then
  if building ~= own_rebuild or not is_of_this_server(building) then return 0 end
elseif not is_of_this_server(redis.call('GET', KEYS[1])) and not is_of_this_server(building) then
  return 0
end

local rows_of = { slots = KEYS[7], reservations = KEYS[8], holds = KEYS[9], gone = KEYS[5] }
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept_until = string.format('%d', now + ARGV[2])

local function known_copy(kind, id)
  local json = redis.call('HGET', rows_of[kind], id)
  if not json then return nil end
  local version, marked_at = string.match(json, '^{"version":(%d+),"marked_at":([^,]+),')
  return tonumber(version), tonumber(marked_at)
end

local function tombstone(kind, id)
  return tonumber(redis.call('HGET', KEYS[5], kind .. '/' .. id) or -1)
end

local function take(kind, id, version, marked_at, is_over, json)
  local known_version, known_mark = known_copy(kind, id)
  if known_version then
    if version < known_version or (version == known_version and marked_at <= known_mark) then return false end
  elseif tombstone(kind, id) > version then
    return false
  end
  redis.call('HSET', rows_of[kind], id, json)
  if is_over then
    redis.call('ZADD', KEYS[6], kept_until, kind .. '/' .. id)
  elseif kind == 'reservations' then
    redis.call('ZREM', KEYS[6], kind .. '/' .. id)
  end
  return true
end

local function bury(kind, id, version)
  local known_version = known_copy(kind, id)
  if (known_version or -1) >= version or tombstone(kind, id) >= version then return false end
  local name = kind .. '/' .. id
  redis.call('HDEL', rows_of[kind], id)
  redis.call('ZREM', KEYS[6], name)
  redis.call('HSET', KEYS[5], name, version)
  redis.call('ZADD', KEYS[6], kept_until, 'gone/' .. name)
  return true
end

local function append_delta(field, json)
  local sequence = redis.call('INCR', KEYS[3])
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[3], string.format('%d-0', sequence), field, json)
end

local function forget_what_is_past()
  local past = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now, 'LIMIT', 0, 1000)
  for _, name in ipairs(past) do
    local kind, field = string.match(name, '^(%a+)/(.*)$')
    redis.call('HDEL', rows_of[kind], field)
    redis.call('ZREM', KEYS[6], name)
  end
end

for i = 4, #ARGV, 6 do
  local kind, id, mark, json = ARGV[i], ARGV[i + 1], ARGV[i + 4], ARGV[i + 5]
  local version, marked_at = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local accepted
  if mark == 'gone' then
    accepted = bury(kind, id, version)
  else
    accepted = take(kind, id, version, marked_at, mark == 'over', json)
  end
  if accepted and own_rebuild == '' then
    append_delta(mark == 'gone' and 'gone' or kind, json)
  end
end
forget_what_is_past()
return 1
