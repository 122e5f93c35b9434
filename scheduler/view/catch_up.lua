-- The deltas after one that the reader has already.
--
-- KEYS[1] view:generation  string
-- KEYS[2] view:sequence    string
-- KEYS[3] view:deltas      stream  "<sequence>-0" -> kind of the row, or "gone" = JSON of the change
-- ARGV[1] generation of the reader's copy
-- ARGV[2] number of the last delta in it
-- ARGV[3] how many deltas to return at most
--
-- Returns {sequence of the view, kind, JSON, kind, JSON, ...} in order and without a gap; nil when there is no
-- valid view, it is another generation, or some of the deltas are not kept any more.

local generation = redis.call('GET', KEYS[1])
if generation ~= ARGV[1] or not is_of_this_server(generation) then return nil end

local from, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local sequence = tonumber(redis.call('GET', KEYS[2]))
if not sequence or sequence < from then return nil end

local entries = redis.call('XRANGE', KEYS[3], string.format('%d-0', from + 1), '+', 'COUNT', most)
if #entries ~= math.min(sequence - from, most) then return nil end

local answer = { sequence }
for i, entry in ipairs(entries) do
  if entry[1] ~= string.format('%d-0', from + i) then return nil end
  answer[#answer + 1] = entry[2][1]
  answer[#answer + 1] = entry[2][2]
end
return answer
