-- A leg was refused for good and no earlier call can have moved its money: it stays due, and the operator decides,
-- unless leg_wait schedules another check.
--
-- keys
--   money=hash journal legs
-- args
--   id
--   number
--   kind     'refund' or 'fee'
--   code
--   certain  '1' when an earlier unknown call does not matter
-- answers
--   refused
--   unknown  an earlier call may have moved the money
--   gone
local p = number .. ' ' .. kind .. ' '
local state, unknown, amount = unpack(redis.call('HMGET', MONEY, p .. 'state', p .. 'unknown', p .. 'amount'))
if state ~= 'settling' and state ~= 'unknown' then return 'gone' end
if unknown and certain ~= '1' then return 'unknown' end
redis.call('HSET', MONEY, p .. 'state', 'refused', p .. 'code', code, p .. 'lease', '0')
redis.call('ZADD', LEGS, '9007199254740991', kind .. ' ' .. id .. ' ' .. number)
book(id, now(), kind .. '_refused', number, amount, code)
return 'refused'
