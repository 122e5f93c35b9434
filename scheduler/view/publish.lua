-- Merges changed rows into the view. Of two copies the newer stays. The accepted changes become one entry of deltas.
--
-- KEYS[1] view:generation    string  the valid view; absent while there is none
-- KEYS[2] view:building      string  the generation of a rebuild under way
-- KEYS[3] view:sequence      string  number of changes accepted in this generation
-- KEYS[4] view:deltas        stream  "<sequence after it>-0" -> "count" = how many changes, then by kind a JSON
--                                    array of them, those of "gone" last
-- KEYS[5] view:gone          hash    "<kind>/<id>" -> version of the tombstone
-- KEYS[6] view:leaving       zset    "<hash>/<field>" -> when it expires (ms): tombstones, ended reservations
-- KEYS[7] view:slots         hash    id -> JSON of the row, "version" and "marked_at" first
-- KEYS[8] view:reservations  hash    the same
-- KEYS[9] view:holds         hash    the same
-- KEYS[10] view:accounts     hash    the same
-- KEYS[11] view:run_times    hash    the same
--
-- ARGV[1] "" for a publish; the generation of a rebuild for its rows, which make no deltas
-- ARGV[2] ms for which tombstones and ended reservations are kept
-- ARGV[3] number of changes whose deltas are kept, approximately
-- ARGV[4] MessagePack: the changes, each [kind, id, version, marked_at, "row" or "over" or "gone", JSON];
--         at most a thousand
--
-- Returns 1; 0 when there is no view, neither valid nor under construction, or another rebuild has begun.

local own_rebuild = ARGV[1]
local building = redis.call('GET', KEYS[2])
if own_rebuild ~= '' then
  if building ~= own_rebuild or not is_of_this_server(building) then return 0 end
elseif not is_of_this_server(redis.call('GET', KEYS[1])) and not is_of_this_server(building) then
  return 0
end

local key_of = {
  slots = KEYS[7],
  reservations = KEYS[8],
  holds = KEYS[9],
  accounts = KEYS[10],
  run_times = KEYS[11],
  gone = KEYS[5],
}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept_until = string.format('%d', now + ARGV[2])
local changes = cmsgpack.unpack(ARGV[4])

local function known_copy(kind, id)
  local json = redis.call('HGET', key_of[kind], id)
  if not json then return nil end
  local version, marked_at = string.match(json, '^{"version":(%d+),"marked_at":([^,]+),')
  return tonumber(version), tonumber(marked_at)
end

-- A tombstone counts only where there is no copy: a stored copy is newer than it. While a view is rebuilt, there are
-- mostly none.
local has_tombstones = redis.call('HLEN', KEYS[5]) > 0
local function tombstone(kind, id)
  if not has_tombstones then return -1 end
  return tonumber(redis.call('HGET', KEYS[5], kind .. '/' .. id) or -1) or -1
end

local function is_newer(kind, id, version, marked_at)
  local known_version, known_mark = known_copy(kind, id)
  if not known_version then return version >= tombstone(kind, id) end  -- promise: deleted-row-stays-deleted
  return version > known_version or (version == known_version and marked_at > known_mark)  -- promise: newer-row-stays
end

-- The JSON of the accepted changes, by kind or "gone". Deletions come last in an entry. A reader has no tombstones, so
-- if it read "gone at 2" before "row at 1" of the same publish, it would keep the row.
local FIELDS = { 'slots', 'reservations', 'holds', 'accounts', 'run_times', 'gone' }
local deltas, accepted = {}, 0

local function note(field, json)
  deltas[field] = deltas[field] or {}
  table.insert(deltas[field], json)
  accepted = accepted + 1
end

-- Name in view:leaving -> whether it is there after these changes. They are written at the end, all in two commands.
local leaving = {}

local function take(kind, id, version, marked_at, mark, json)
  if not is_newer(kind, id, version, marked_at) then return end
  redis.call('HSET', key_of[kind], id, json)
  if kind == 'reservations' then leaving[kind .. '/' .. id] = mark == 'over' end
  note(kind, json)
end

local function bury(kind, id, version, json)
  if version <= (known_copy(kind, id) or tombstone(kind, id)) then return end
  local name = kind .. '/' .. id
  redis.call('HDEL', key_of[kind], id)
  redis.call('HSET', KEYS[5], name, version)
  has_tombstones = true
  leaving[name], leaving['gone/' .. name] = false, true
  note('gone', json)
end

local function write_leaving()
  local come, gone = {}, {}
  for name, is_there in pairs(leaving) do
    if is_there then
      come[#come + 1], come[#come + 2] = kept_until, name
    else
      gone[#gone + 1] = name
    end
  end
  if #come > 0 then redis.call('ZADD', KEYS[6], unpack(come)) end
  if #gone > 0 then redis.call('ZREM', KEYS[6], unpack(gone)) end
end

local function append_deltas()
  local sequence = redis.call('INCRBY', KEYS[3], accepted)
  local entry = { 'count', accepted }
  for _, field in ipairs(FIELDS) do
    if deltas[field] then
      table.insert(entry, field)
      table.insert(entry, '[' .. table.concat(deltas[field], ',') .. ']')
    end
  end
  local oldest = string.format('%d-0', math.max(0, sequence - ARGV[3]))
  redis.call('XADD', KEYS[4], 'MINID', '~', oldest, string.format('%d-0', sequence), unpack(entry))
end

local function delete_expired()
  local past = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now, 'LIMIT', 0, 1000)
  for _, name in ipairs(past) do
    local kind, field = string.match(name, '^([%a_]+)/(.*)$')
    if key_of[kind or ''] then redis.call('HDEL', key_of[kind], field) end
    redis.call('ZREM', KEYS[6], name)
  end
end

for _, change in ipairs(changes) do
  local kind, id, version, marked_at, mark, json = unpack(change)
  if mark == 'gone' then
    bury(kind, id, version, json)
  else
    take(kind, id, version, marked_at, mark, json)
  end
end
write_leaving()
if accepted > 0 and own_rebuild == '' then append_deltas() end
delete_expired()
return 1
