-- The money has moved. True from whomever it comes and whatever the record says by now.
-- KEYS   transition(id)
-- ARGV   id, number, transaction, PAYMENT-RESPONSE, how it is known ('facilitator', 'chain', 'presumed', 'operator')
-- Result {'completed'}, {'working', lane}, {'refund'}, {'known'} or {'lost'} (no such payment here)
local id, number, tx, response, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local at = now()
local state = paid_with(number, 'state')
if not state then
  book(id, at, 'settled_unknown_payment', number, '0', tx)
  return {'lost'}
end
if state == 'settled' then return {'known'} end
redis.call('HSET', MONEY, number .. ' tx', tx, number .. ' response', response, number .. ' how', how,
  number .. ' settled', whole(at), number .. ' lease', '0')
turn(id, at, number, 'settled', tx)
local current, paid, mode = unpack(redis.call('HMGET', MONEY, 'current', 'paid', 'mode'))
if current == number then redis.call('ZREM', OPEN, id) end
if paid then
  owe_refund(id, at, number, 'duplicate_payment')
  return {'refund'}
end
redis.call('HSET', MONEY, 'paid', number)
local execution, phase, sealed, lane, terminal = unpack(get('state', 'phase', 'sealed_by', 'lane', 'terminal'))
if not execution or TERMINAL[execution] then
  owe_refund(id, at, number, 'no_response')
  return {'refund'}
end
-- An earlier payment landed late: the one that was claimed after it is not needed any more.
if current ~= number then
  local other = paid_with(current, 'state')
  if other == 'claimed' or other == 'verified' then
    turn(id, at, current, 'released', 'another payment landed')
    redis.call('ZREM', OPEN, id)
  end
end
emit(at, 'payment.settled', '{"number":' .. number .. ',"transaction":"' .. tx .. '"}')
if sealed then
  finish(id, at, execution, 'completed', terminal)
  return {'completed'}
end
redis.call('HSET', RECORD, 'phase', 'working', 'updated', whole(at))
if execution == 'pending' and phase ~= 'working' then
  queue(id, at, lane)
  wake()
  return {'working', lane}
end
wake()
return {'known'}
