-- Leave to call the facilitator: one call a payment at a time, journaled before it is made.
-- KEYS   transition(id)
-- ARGV   id, token of the caller, lease in us
-- Result {'go', number, payload, requirements, payer, '1' when an earlier call ended unknown, '1' when one may have
--        moved the money}, {'busy'} (somebody calls, or it is too early to call again) or {'no', state}
local id, token, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local number = redis.call('HGET', MONEY, 'current')
local phase = redis.call('HGET', RECORD, 'phase')
local at = now()
if not number then return {'no', 'none'} end
local state, held, holder, payload, requirements, payer, unknown, amount, again, maybe = paid_with(number,
  'state', 'lease', 'token', 'payload', 'requirements', 'payer', 'unknown', 'amount', 'again', 'maybe')
local wanted = state == 'settling' or state == 'unknown' or (state == 'verified' and phase == 'settling')
if not wanted then return {'no', state} end
if tonumber(held or 0) > at and holder ~= token then return {'busy'} end
if tonumber(again or 0) > at then return {'busy'} end
-- A call that began and was never answered may have moved the money.
if state == 'settling' then
  unknown, maybe = '1', '1'
  redis.call('HSET', MONEY, number .. ' unknown', '1', number .. ' maybe', '1')
end
if state == 'verified' then turn(id, at, number, 'settling') end
redis.call('HSET', MONEY, number .. ' lease', whole(at + lease), number .. ' token', token)
redis.call('HINCRBY', MONEY, number .. ' calls', 1)
redis.call('ZADD', OPEN, whole(at + lease), id)
book(id, at, 'settle_call', number, amount)
return {'go', number, payload, requirements, payer, unknown or '', maybe or ''}
