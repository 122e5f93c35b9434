-- Returns the deltas after the changes that the reader has already.
--
-- KEYS[1] view:generation  string
-- KEYS[2] view:sequence    string
-- KEYS[3] view:deltas      stream  "<sequence after it>-0" -> "count" = how many changes, then by kind a JSON
--                                  array of them, those of "gone" last
-- ARGV[1] generation of the reader's copy
-- ARGV[2] number of the last change in it
-- ARGV[3] most entries to return
--
-- Returns {1 when there are no more, sequence after them, field, JSON, field, JSON, ...} in order and without a gap;
-- nil when there is no valid view, it is another generation, or some of the deltas are not kept any more.

local generation = redis.call('GET', KEYS[1])
if generation ~= ARGV[1] or not is_of_this_server(generation) then return nil end

local reached, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local sequence = tonumber(redis.call('GET', KEYS[2]))
if not sequence or sequence < reached then return nil end

local answer = { 0, 0 }
local entries = redis.call('XRANGE', KEYS[3], string.format('%d-0', reached + 1), '+', 'COUNT', most)
for _, entry in ipairs(entries) do
  local fields = entry[2]
  local after, changes = tonumber(string.match(entry[1], '^%d+')), tonumber(fields[2])
  if not changes or after - changes ~= reached then return nil end
  reached = after
  for i = 3, #fields do
    answer[#answer + 1] = fields[i]
  end
end
if #entries < most and reached ~= sequence then return nil end
answer[1], answer[2] = reached == sequence and 1 or 0, reached
return answer
