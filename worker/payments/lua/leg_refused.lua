-- A leg was refused for good and no earlier call can have moved its money: it stays due, and the operator decides.
-- KEYS   transition(id)
-- ARGV   id, number, 'refund' or 'fee', code, '1' when an earlier unknown call does not matter
-- Result 'refused', 'unknown' (an earlier call may have moved the money) or 'gone'
local id, number, kind, code = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local p = number .. ' ' .. kind .. ' '
local state, unknown, amount = unpack(redis.call('HMGET', MONEY, p .. 'state', p .. 'unknown', p .. 'amount'))
if state ~= 'settling' and state ~= 'unknown' then return 'gone' end
if unknown and ARGV[5] ~= '1' then return 'unknown' end
redis.call('HSET', MONEY, p .. 'state', 'refused', p .. 'code', code, p .. 'lease', '0')
redis.call('ZADD', LEGS, '9007199254740991', kind .. ' ' .. id .. ' ' .. number)
book(id, now(), kind .. '_refused', number, amount, code)
return 'refused'
