-- Removes what is left of a connection that has ended and holds nothing any more.
-- KEYS   epochs, connection, held, busy, mailbox, the lists of runners it stands in
-- ARGV   epoch, its member in those lists
-- Result 1, or 0 while something hangs on it
typed('ZCARD', KEYS[1], unpack(KEYS, 6))
typed('HLEN', KEYS[4])
if alive(KEYS[1], ARGV[1], now()) or redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
for i = 6, #KEYS do redis.call('ZREM', KEYS[i], ARGV[2]) end
redis.call('DEL', KEYS[2], KEYS[5])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
