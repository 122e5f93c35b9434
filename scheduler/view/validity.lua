-- Put before every script on the view: is what is stored here this very server's?
--
-- A generation is "<random>:<run id of the server>". After a flush there is none; after a restart, a restored
-- snapshot or a failover the run id is another server's. Then nothing here is to be believed.

local function is_of_this_server(generation)
  if not generation then return false end
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  -- promise: whole-view
  return string.sub(generation, -#run_id) == run_id
end
