-- Publishes each message on its channel, in one call: packing and answering a PUBLISH for each costs more than to publish.
--
-- ARGV  channel, message, channel, message, ...

for place = 1, #ARGV, 2 do
    redis.call('PUBLISH', ARGV[place], ARGV[place + 1])
end
