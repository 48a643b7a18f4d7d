-- Operator's refund: a refund leg for an execution that has ended, never above what is left of a payment.
--
-- keys
--   money record journal legs sums wallets
-- args
--   id
--   number
--   wanted  amount, or '' for all that is left
--   reason
-- answers
--   due        amount
--   none       no such payment
--   open       the execution has not ended
--   unsettled  state
--   under_way  state
--   above      what is left
local p = number .. ' refund '
local state, settled, refunded, owed, ordinal = paid_with(number, 'state', 'amount', 'refunded', 'refund state',
  'refund ordinal')
if not state then return {'none'} end
if not TERMINAL[get('state')[1] or ''] then return {'open'} end
if state ~= 'settled' then return {'unsettled', state} end
if owed and owed ~= 'settled' then return {'under_way', owed} end
local left = tonumber(settled) - tonumber(refunded or 0)
local amount = wanted == '' and left or tonumber(wanted)
if amount <= 0 or amount > left then return {'above', whole(left)} end
local at = now()
-- An earlier refund keeps its receipt under its ordinal; this one has the next.
if owed then
  local tx, how, receipt, before = paid_with(number, 'refund tx', 'refund how', 'refund receipt', 'refund amount')
  redis.call('HSET', MONEY, p .. ordinal .. ' receipt', receipt or '', p .. ordinal .. ' tx', tx or '',
    p .. ordinal .. ' how', how or '', p .. ordinal .. ' amount', before)
  redis.call('HDEL', MONEY, p .. 'payload', p .. 'requirements', p .. 'unknown', p .. 'calls', p .. 'cause', p .. 'hash',
    p .. 'code', p .. 'valid_before', p .. 'token', p .. 'tx', p .. 'how', p .. 'receipt', p .. 'settled')
  ordinal = whole(tonumber(ordinal) + 1)
end
redis.call('HSET', MONEY, p .. 'state', 'due', p .. 'amount', whole(amount), p .. 'reason', reason,
  p .. 'ordinal', ordinal or '0', p .. 'lease', '0')
redis.call('HINCRBY', SUMS, 'refunds_due', whole(amount))
budget_pay(paid_with(number, 'payer'), whole(-amount))
redis.call('ZADD', LEGS, whole(at), 'refund ' .. id .. ' ' .. number)
book(id, at, 'refund_due', number, whole(amount), reason)
return {'due', whole(amount)}
