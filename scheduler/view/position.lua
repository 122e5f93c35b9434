-- Returns the position of the view, for a reader that will copy the whole view.
--
-- KEYS[1] view:generation  string
-- KEYS[2] view:sequence    string
--
-- Returns {generation, sequence}, or nil when there is no valid view.

local generation = redis.call('GET', KEYS[1])
if not is_of_this_server(generation) then return nil end
local sequence = tonumber(redis.call('GET', KEYS[2]))
if not sequence then return nil end
return { generation, sequence }
