-- Returns some rows of one kind, for readers without a copy of the view.
--
-- KEYS[1] view:generation  string
-- KEYS[2] view:<kind>      hash  id -> JSON of the row
-- ARGV    the ids, at most a thousand
--
-- Returns the rows' JSON in the order of the ids, nil for a missing row; 0 when there is no valid view.

if not is_of_this_server(redis.call('GET', KEYS[1])) then return 0 end
return redis.call('HMGET', KEYS[2], unpack(ARGV))
