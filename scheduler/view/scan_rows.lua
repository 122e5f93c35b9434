-- Returns some rows of one kind as one text, which a reader decodes much faster than thousands of replies.
--
-- KEYS[1] view:<kind>  hash  id -> JSON of the row
-- ARGV[1] cursor of HSCAN, 0 at the beginning
-- ARGV[2] number of rows to return, approximately
--
-- Returns {next cursor, JSON array of rows}. The scan has ended if the next cursor is 0. A row may be returned twice.

local answer = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found, rows = answer[2], {}
for i = 2, #found, 2 do
  rows[#rows + 1] = found[i]
end
return { answer[1], '[' .. table.concat(rows, ',') .. ']' }
