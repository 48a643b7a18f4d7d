-- Records the chain's final verdict on a settlement: proven, or unproven and left to the operator.
--
-- keys
--   money audits journal unproven
-- args
--   id
--   number
--   outcome   'proven' or 'unproven'
--   tx        transaction
--   response  PAYMENT-RESPONSE that names it, or ''
-- answers
--   proven
--   unproven
--   gone
local member = id .. ' ' .. number
local state, proof, amount = paid_with(number, 'state', 'proof', 'amount')
if state ~= 'settled' or proof then
  redis.call('ZREM', AUDITS, member)
  return 'gone'
end
local at = now()
redis.call('HSET', MONEY, number .. ' proof', outcome, number .. ' tx', tx)
if response ~= '' then redis.call('HSET', MONEY, number .. ' response', response) end
redis.call('ZREM', AUDITS, member)
if outcome == 'unproven' then redis.call('ZADD', UNPROVEN, whole(at), member) end
book(id, at, outcome, number, amount, tx)
return outcome
