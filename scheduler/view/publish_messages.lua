-- Publishes each message on its channel, in one call: packing a PUBLISH for each, and its answer, cost more than that.
--
-- ARGV  channel, message, channel, message, ...

for place = 1, #ARGV, 2 do
    redis.call('PUBLISH', ARGV[place], ARGV[place + 1])
end
