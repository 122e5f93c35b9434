-- Returns some rows of one kind as one text, which a reader decodes much faster than thousands of replies.
--
-- KEYS[1] view:<kind>  hash  id -> JSON of the row
-- ARGV[1] cursor of HSCAN, 0 at the beginning
-- ARGV[2] number of rows to return, approximately
--
-- Returns {next cursor, JSON array of rows}. The scan has ended if the next cursor is 0. A row may be returned twice.

local answer = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found = answer[2] -- the ids and the rows by turns
for i = 1, #found, 2 do
  found[i] = ','
end
found[1] = '['
found[#found + 1] = ']'
return { answer[1], table.concat(found) }
