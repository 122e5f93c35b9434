-- Makes a rebuild the valid view, unless another rebuild began meanwhile. May run twice.
--
-- KEYS[1] view:generation  string
-- KEYS[2] view:building    string
-- ARGV[1] the generation that is finished
--
-- Returns 1, or 0 when the view belongs to another rebuild.

if redis.call('GET', KEYS[2]) == ARGV[1] and is_of_this_server(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('DEL', KEYS[2])
end
return redis.call('GET', KEYS[1]) == ARGV[1] and 1 or 0
