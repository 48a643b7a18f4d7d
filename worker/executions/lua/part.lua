-- The process of a connection leaves. For one lease its sessions and mailbox wait for the consumer to come back.
-- KEYS   epochs, parted, consumers, mailbox
-- ARGV   epoch, consumer, lease in us, field of the parted, how many messages of the mailbox were written out
-- Result 1, or 0 when the connection has ended
typed('ZCARD', KEYS[1], KEYS[3])
typed('HLEN', KEYS[2])
typed('LLEN', KEYS[4])
local at = now()
if not alive(KEYS[1], ARGV[1], at) then return 0 end
redis.call('LTRIM', KEYS[4], ARGV[5], -1)
redis.call('ZREM', KEYS[3], ARGV[2] .. '\0' .. ARGV[1])
redis.call('HSET', KEYS[2], ARGV[4], ARGV[1])
redis.call('ZADD', KEYS[1], whole(at + tonumber(ARGV[3])), ARGV[1])
return 1
