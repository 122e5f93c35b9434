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

local key_of = { slots = KEYS[7], reservations = KEYS[8], holds = KEYS[9], accounts = KEYS[10], gone = KEYS[5] }
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept_until = string.format('%d', now + ARGV[2])
local changes = cmsgpack.unpack(ARGV[4])

-- Speed: rows and tombstones are read and written in one command for each hash, not in one for each change.
local copies, tombstones = {}, {}  -- by kind, then by id: { version, marked_at } or nil; "<kind>/<id>" -> version

local function read_copies(kind, ids)
  copies[kind] = {}
  local missing = {}
  for place, json in ipairs(redis.call('HMGET', key_of[kind], unpack(ids))) do
    local version, marked_at = string.match(json or '', '^{"version":(%d+),"marked_at":([^,]+),')
    if version then
      copies[kind][ids[place]] = { tonumber(version), tonumber(marked_at) }
    else
      missing[#missing + 1] = kind .. '/' .. ids[place]
    end
  end
  -- A tombstone counts only where there is no copy: a stored copy is newer than it.
  if #missing == 0 or redis.call('HLEN', KEYS[5]) == 0 then return end
  for place, version in ipairs(redis.call('HMGET', KEYS[5], unpack(missing))) do
    tombstones[missing[place]] = tonumber(version or -1)
  end
end

local function tombstone(kind, id)
  return tombstones[kind .. '/' .. id] or -1
end

local function is_newer(kind, id, version, marked_at)
  local known = copies[kind][id]
  if not known then return version >= tombstone(kind, id) end  -- promise: deleted-row-stays-deleted
  return version > known[1] or (version == known[1] and marked_at > known[2])  -- promise: newer-row-stays
end

-- The JSON of the accepted changes, by kind or "gone". Deletions come last in an entry. A reader has no tombstones, so
-- if it read "gone at 2" before "row at 1" of the same publish, it would keep the row.
local FIELDS = { 'slots', 'reservations', 'holds', 'accounts', 'gone' }
local deltas, accepted = {}, 0
local written = {}  -- by kind, then by id: the JSON of the row, false when it is deleted; by "gone": tombstones
local leaving = {}  -- member of view:leaving -> true when it is to be there, else false

local function put(place, field, value)
  written[place] = written[place] or {}
  written[place][field] = value
end

local function note(field, json)
  deltas[field] = deltas[field] or {}
  table.insert(deltas[field], json)
  accepted = accepted + 1
end

local function take(kind, id, version, marked_at, mark, json)
  if not is_newer(kind, id, version, marked_at) then return end
  copies[kind][id] = { version, marked_at }
  put(kind, id, json)
  if mark == 'over' then
    leaving[kind .. '/' .. id] = true
  elseif kind == 'reservations' then
    leaving[kind .. '/' .. id] = false
  end
  note(kind, json)
end

local function bury(kind, id, version, json)
  local known = copies[kind][id]
  if version <= (known and known[1] or tombstone(kind, id)) then return end
  local name = kind .. '/' .. id
  copies[kind][id], tombstones[name] = nil, version
  put(kind, id, false)
  put('gone', name, version)
  leaving[name], leaving['gone/' .. name] = false, true
  note('gone', json)
end

local function write()
  for place, fields in pairs(written) do
    local stored, deleted = {}, {}
    for field, value in pairs(fields) do
      if value then
        stored[#stored + 1] = field
        stored[#stored + 1] = value
      else
        deleted[#deleted + 1] = field
      end
    end
    if #stored > 0 then redis.call('HSET', key_of[place], unpack(stored)) end
    if #deleted > 0 then redis.call('HDEL', key_of[place], unpack(deleted)) end
  end
  local added, removed = {}, {}
  for member, stays in pairs(leaving) do
    if stays then
      added[#added + 1] = kept_until
      added[#added + 1] = member
    else
      removed[#removed + 1] = member
    end
  end
  if #added > 0 then redis.call('ZADD', KEYS[6], unpack(added)) end
  if #removed > 0 then redis.call('ZREM', KEYS[6], unpack(removed)) end
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
    local kind, field = string.match(name, '^(%a+)/(.*)$')
    if key_of[kind or ''] then redis.call('HDEL', key_of[kind], field) end
    redis.call('ZREM', KEYS[6], name)
  end
end

local ids = {}
for _, change in ipairs(changes) do
  ids[change[1]] = ids[change[1]] or {}
  table.insert(ids[change[1]], change[2])
end
for kind, of_kind in pairs(ids) do
  read_copies(kind, of_kind)
end
for _, change in ipairs(changes) do
  local kind, id, version, marked_at, mark, json = unpack(change)
  if mark == 'gone' then
    bury(kind, id, version, json)
  else
    take(kind, id, version, marked_at, mark, json)
  end
end
write()
if accepted > 0 and own_rebuild == '' then append_deltas() end
delete_expired()
return 1
