-- The facilitator would not settle the payment: nothing moved, the contract may be paid for otherwise.
-- KEYS   transition(id)
-- ARGV   id, number, code
-- Result 'offered', 'payment_due' or 'gone'
local id, number, code = ARGV[1], ARGV[2], ARGV[3]
local current = redis.call('HGET', MONEY, 'current')
local phase, sealed = unpack(get('phase', 'sealed_by'))
if current ~= number or paid_with(number, 'state') ~= 'claimed' or phase ~= 'verifying' then return 'gone' end
local at = now()
redis.call('HSET', MONEY, number .. ' code', code)
turn(id, at, number, 'refused', code)
redis.call('ZREM', OPEN, id)
phase = sealed and 'payment_due' or 'offered'
redis.call('HSET', RECORD, 'phase', phase, 'updated', whole(at))
emit(at, 'payment.refused', '{"number":' .. number .. ',"code":"' .. code .. '"}')
wake()
return phase
