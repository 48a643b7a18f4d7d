-- Lease to settle a leg: one call per leg at a time, journaled before anything is signed or sent.
--
-- keys
--   money=hash journal legs
-- args
--   id
--   number
--   kind       'refund' or 'fee'
--   token      of the caller
--   lease      us
--   valid_for  seconds, of a new signature
-- answers
--   sign  time, ordinal, amount, valid before; nothing was sent under this ordinal
--   send  the same, payload, requirements, '1' when an earlier call ended unknown
--   busy
--   no    state
local lease = tonumber(lease)
local p = number .. ' ' .. kind .. ' '
local member = kind .. ' ' .. id .. ' ' .. number
local state, held, holder, amount, ordinal, payload, requirements, unknown, valid_before = unpack(redis.call('HMGET',
  MONEY, p .. 'state', p .. 'lease', p .. 'token', p .. 'amount', p .. 'ordinal', p .. 'payload', p .. 'requirements',
  p .. 'unknown', p .. 'valid_before'))
if state ~= 'due' and state ~= 'settling' and state ~= 'unknown' then
  if not state or state == 'settled' then redis.call('ZREM', LEGS, member) end
  return {'no', state or 'none'}
end
local at = now()
if tonumber(held or 0) > at and holder ~= token then return {'busy'} end
if kind == 'refund' then
  local paid, settled, refunded = paid_with(number, 'state', 'amount', 'refunded')
  if paid ~= 'settled' or tonumber(amount) + tonumber(refunded or 0) > tonumber(settled) then
    redis.call('HSET', MONEY, p .. 'state', 'refused', p .. 'code', 'above_settled')
    redis.call('ZADD', LEGS, '9007199254740991', member)
    book(id, at, 'refund_refused', number, amount, 'above_settled')
    return {'no', 'refused'}
  end
end
ordinal = ordinal or '0'
redis.call('HSET', MONEY, p .. 'lease', whole(at + lease), p .. 'token', token, p .. 'ordinal', ordinal)
redis.call('ZADD', LEGS, whole(at + lease), member)
if not payload then
  valid_before = whole(math.floor(at / 1e6) + tonumber(valid_for))
  redis.call('HSET', MONEY, p .. 'state', 'settling', p .. 'valid_before', valid_before)
  book(id, at, kind .. '_begun', number, amount, ordinal)
  return {'sign', whole(at), ordinal, amount, valid_before}
end
-- A call that began and was never answered may have moved the money.
redis.call('HSET', MONEY, p .. 'unknown', '1')
redis.call('HINCRBY', MONEY, p .. 'calls', 1)
book(id, at, kind .. '_call', number, amount, ordinal)
return {'send', whole(at), ordinal, amount, valid_before, payload, requirements, '1'}
