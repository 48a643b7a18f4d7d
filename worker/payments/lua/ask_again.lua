-- Nobody could say yet: when the clock is to ask next.
-- KEYS   transition(id)
-- ARGV   id, number, what was asked, delays in us separated by spaces
-- Result the delay in us
local id, number = ARGV[1], ARGV[2]
local delays = {}
for delay in string.gmatch(ARGV[4], '%d+') do delays[#delays + 1] = tonumber(delay) end
local tries = redis.call('HINCRBY', MONEY, number .. ' ' .. ARGV[3] .. ' tries', 1)
local delay = delays[math.min(tries, #delays)]
redis.call('ZADD', OPEN, 'XX', whole(now() + delay), id)
return whole(delay)
