-- Takes the leader lock, or leaves a mark for its holder.
--
-- KEYS[1] leader  string  the token of the holder's take; expires
-- KEYS[2] again   string  the mark: a process requested a tick that the holder has not begun
-- KEYS[3] kick    string  the flag of a kick: the message for a tick was sent, and no tick has begun since
-- ARGV[1] the caller's token, new for each take
-- ARGV[2] ms for which it is held
--
-- Returns 1 when this token has the lock, also when the same take arrives twice; else 0.

local is_taken = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not is_taken and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('SET', KEYS[2], 1)  -- promise: kick-kept
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2], KEYS[3])
return 1
