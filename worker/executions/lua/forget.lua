-- Removes what is left of a connection that has ended and holds nothing any more.
-- KEYS   epochs, connection, held, busy, mailbox, turns, consumers of its agent or runner, the lists of runners it
--        stands in
-- ARGV   epoch, its member in those lists, its agent's field in turns or '', the field of each list's tool
-- Result 1, or 0 while something hangs on it
typed('ZCARD', KEYS[1], unpack(KEYS, 7))
typed('HLEN', KEYS[4], KEYS[6])
if alive(KEYS[1], ARGV[1], now()) or redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
-- Whose turn it is matters as long as there is anybody.
local function take_turn(key, field)
  if field ~= '' and redis.call('EXISTS', key) == 0 then redis.call('HDEL', KEYS[6], field) end
end
for i = 8, #KEYS do
  redis.call('ZREM', KEYS[i], ARGV[2])
  take_turn(KEYS[i], ARGV[i - 4])
end
take_turn(KEYS[7], ARGV[3])
redis.call('DEL', KEYS[2], KEYS[5])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
