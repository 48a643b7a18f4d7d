-- A leg's call ended without a certain answer: the identical call is made again.
-- KEYS   transition(id)
-- ARGV   id, number, 'refund' or 'fee', token, cause, transaction to look for or '', delays in us separated by spaces
-- Result {delay in us} or {'gone'}
local id, number, kind, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local p = number .. ' ' .. kind .. ' '
local at = now()
local state, holder, calls, amount = unpack(redis.call('HMGET', MONEY,
  p .. 'state', p .. 'token', p .. 'calls', p .. 'amount'))
if state ~= 'settling' and state ~= 'unknown' then return {'gone'} end
local delays = {}
for delay in string.gmatch(ARGV[7], '%d+') do delays[#delays + 1] = tonumber(delay) end
local delay = delays[math.min(math.max(tonumber(calls or 1), 1), #delays)]
redis.call('HSET', MONEY, p .. 'unknown', '1', p .. 'cause', ARGV[5])
if ARGV[6] ~= '' then redis.call('HSET', MONEY, p .. 'hash', ARGV[6]) end
if state == 'settling' then
  redis.call('HSET', MONEY, p .. 'state', 'unknown')
  book(id, at, kind .. '_unknown', number, amount, ARGV[5])
end
if holder == token then
  redis.call('HSET', MONEY, p .. 'lease', '0')
  redis.call('ZADD', LEGS, whole(at + delay), kind .. ' ' .. id .. ' ' .. number)
end
return {whole(delay)}
