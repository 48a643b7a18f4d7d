-- The facilitator refused for good and no earlier call can have moved the money.
-- KEYS   transition(id)
-- ARGV   id, number, code, PAYMENT-RESPONSE, how long a sealed result waits for another payment (us),
--        '1' when the chain itself shows that the money cannot move any more
-- Result 'payment_due', 'offered', 'unknown' (an earlier call may have moved it) or 'gone'
local id, number, code = ARGV[1], ARGV[2], ARGV[3]
local at = now()
local state, unknown = paid_with(number, 'state', 'unknown')
if state ~= 'settling' and state ~= 'unknown' then return 'gone' end
if unknown and ARGV[6] ~= '1' then return 'unknown' end
redis.call('HSET', MONEY, number .. ' code', code, number .. ' response', ARGV[4], number .. ' lease', '0')
turn(id, at, number, 'refused', code)
unpaid(at)
redis.call('ZREM', OPEN, id)
local execution, sealed, ends_by = unpack(get('state', 'sealed_by', 'ends_by'))
local current, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
if not execution or TERMINAL[execution] or paid or current ~= number then return 'gone' end
local phase = sealed and 'payment_due' or 'offered'
redis.call('HSET', RECORD, 'phase', phase, 'updated', whole(at))
if sealed then
  local by = whole(math.max(tonumber(ends_by), at + tonumber(ARGV[5])))
  redis.call('HSET', RECORD, 'ends_by', by)
  redis.call('ZADD', DEADLINES, by, id)
end
emit(at, 'payment.refused', '{"number":' .. number .. ',"code":"' .. code .. '"}')
wake()
return phase
