-- Takes the leader lock, or leaves a mark for its holder.
--
-- KEYS[1] leader  string  the holder's token of this tenure, expires by itself
-- KEYS[2] again   string  there while somebody asked for a tick that the holder has not begun
-- ARGV[1] token of the one who asks, new for each take
-- ARGV[2] ms for which it is held
--
-- Returns 1 when it is held by this token: also when the same take arrives twice.

local is_taken = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not is_taken and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('SET', KEYS[2], 1)  -- promise: kick-kept
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
return 1
