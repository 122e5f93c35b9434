-- Some rows of one kind, without copying the view.
--
-- KEYS[1] view:generation  string
-- KEYS[2] view:<kind>      hash  id -> JSON of the row
-- ARGV    the ids, at most a thousand
--
-- Returns the rows' JSON in the order of the ids, nil where there is none; or 0 when there is no valid view.

if not is_of_this_server(redis.call('GET', KEYS[1])) then return 0 end
return redis.call('HMGET', KEYS[2], unpack(ARGV))
