-- Says which tools a runner's connection offers from now on.
-- KEYS   epochs, connection, number of lists it leaves (as ARGV[3]) ..., lists it joins
-- ARGV   epoch, its member in the lists, how many of the lists it leaves, the tools as JSON
-- Result 1, or 0 when it has ended
typed('ZCARD', KEYS[1], unpack(KEYS, 3))
typed('HLEN', KEYS[2])
if not alive(KEYS[1], ARGV[1], now()) then return 0 end
local leaves = tonumber(ARGV[3])
for i = 3, 2 + leaves do redis.call('ZREM', KEYS[i], ARGV[2]) end
for i = 3 + leaves, #KEYS do redis.call('ZADD', KEYS[i], 0, ARGV[2]) end
redis.call('HSET', KEYS[2], 'tools', ARGV[4])
return 1
