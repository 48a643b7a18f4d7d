-- Records that the facilitator would not settle the payment: no money moved, and another payment may follow. Unpaid
-- data stays small: before the work has begun, the input is dropped, and the contract expires at its deadline.
--
-- keys
--   log money record journal open_payments sums verifying wallets contract(contract)
-- args
--   id
--   number
--   code
-- answers
--   offered      reference of the input's file, or ''
--   payment_due
--   gone
local current = redis.call('HGET', MONEY, 'current')
local phase, sealed, started, ends_by, file = unpack(get('phase', 'sealed_by', 'first_started', 'ends_by', 'input_ref'))
if current ~= number or paid_with(number, 'state') ~= 'claimed' or phase ~= 'verifying' then return {'gone'} end
local at = now()
turn(id, at, number, 'refused', code, number .. ' code', code)
redis.call('ZREM', OPEN_PAYMENTS, id)
redis.call('ZREM', VERIFYING, id)
-- The payment was good when it took a place but not when the work was about to begin: counts as a run.
if (paid_with(number, 'rechecked')) then budget_run(paid_with(number, 'payer'), at) end
phase = sealed and 'payment_due' or 'offered'
redis.call('HSET', RECORD, 'phase', phase, 'updated', whole(at))
emit(at, 'payment.refused', '{"number":' .. number .. ',"code":' .. quoted(code) .. '}')
wake()
tell('look')
if sealed or started then return {phase} end
-- Clear the digest, so that any later input counts as new: processes of data version 1 do not store a known input.
redis.call('HSET', RECORD, 'input', 'null', 'input_ref', '', 'context', '', 'digest', '')
if not redis.call('HGET', MONEY, 'paid') then
  redis.call('PEXPIRE', CONTRACT, math.max(1, math.floor((tonumber(ends_by) - at) / 1000)))
end
return {phase, file or ''}
