-- Prepended to every script on the view: tests whether this server itself stored the view.
--
-- A generation is "<random>:<run id of the server>". After a flush there is none. After a restart, a restored
-- snapshot or a failover it has the run id of another server, and the view may be old or incomplete.

local function is_of_this_server(generation)
  if not generation then return false end
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  -- promise: whole-view
  return string.sub(generation, -#run_id) == run_id
end
