-- Publishes each message on its channel, in one call: packing a PUBLISH for each, and its answer, cost more than that.
--
-- One argument, because packing thousands of them takes a twentieth of the time of a release.
--
-- ARGV[1] MessagePack: the messages, each [channel, message]

for _, each in ipairs(cmsgpack.unpack(ARGV[1])) do
    redis.call('PUBLISH', each[1], each[2])
end
