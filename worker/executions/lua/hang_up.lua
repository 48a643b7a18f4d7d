-- A connection has ended: it gets no work and no messages any more. What hung on it is seen to afterwards.
-- KEYS   epochs, parted, consumers, mailbox
-- ARGV   epoch, consumer, field of the parted, '1' when only a lapsed lease counts
-- Result 1, or 0 when it goes on
typed('ZCARD', KEYS[1], KEYS[3])
typed('HLEN', KEYS[2])
if ARGV[4] == '1' and alive(KEYS[1], ARGV[1], now()) then return 0 end
redis.call('ZREM', KEYS[3], ARGV[2] .. '\0' .. ARGV[1])
if redis.call('HGET', KEYS[2], ARGV[3]) == ARGV[1] then redis.call('HDEL', KEYS[2], ARGV[3]) end
cut(KEYS[1], ARGV[1], KEYS[4])
return 1
