-- The facilitator refused for good and no earlier call can have moved the money.
--
-- keys
--   log money record deadlines journal open_payments sums wallets
-- args
--   id
--   number
--   code
--   response  PAYMENT-RESPONSE
--   waits     us that a sealed result waits for another payment
--   by_chain  '1' when the chain itself shows that the money cannot move any more
-- answers
--   payment_due
--   offered
--   unknown      an earlier call may have moved it
--   gone
local at = now()
local state, unknown = paid_with(number, 'state', 'unknown')
if state ~= 'settling' and state ~= 'unknown' then return 'gone' end
if unknown and by_chain ~= '1' then return 'unknown' end
turn(id, at, number, 'refused', code, number .. ' code', code, number .. ' response', response, number .. ' lease', '0')
if not redis.call('HGET', MONEY, 'paid') then uncharged(at, true) end
redis.call('ZREM', OPEN_PAYMENTS, id)
local execution, sealed, ends_by = unpack(get('state', 'sealed_by', 'ends_by'))
local current, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
if not execution or TERMINAL[execution] or paid or current ~= number then return 'gone' end
local phase = sealed and 'payment_due' or 'offered'
redis.call('HSET', RECORD, 'phase', phase, 'updated', whole(at))
if sealed then
  local by = whole(math.max(tonumber(ends_by), at + tonumber(waits)))
  redis.call('HSET', RECORD, 'ends_by', by)
  redis.call('ZADD', DEADLINES, by, id)
end
emit(at, 'payment.refused', '{"number":' .. number .. ',"code":' .. quoted(code) .. '}')
wake()
tell('look')
return phase
