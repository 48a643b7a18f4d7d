-- The facilitator refused after a settle call: believed only after a look at the chain. Until then the payment is
-- unknown, so nobody is asked to pay again, and no call is repeated.
--
-- keys
--   log money record journal open_payments
-- args
--   id
--   number
--   token       of the caller
--   code
--   delay_list  us, separated by spaces
-- answers
--   unknown
--   gone
local at = now()
local state, holder, unknown, refusal = paid_with(number, 'state', 'token', 'unknown', 'refusal')
if state ~= 'settling' and state ~= 'unknown' then return 'gone' end
-- After an unknown call no refusal is believed; a refusal waiting for the chain was the first answer.
if not unknown and not refusal then
  redis.call('HSET', MONEY, number .. ' refusal', code, number .. ' refused_at', whole(at))
end
local looks = redis.call('HINCRBY', MONEY, number .. ' looks', 1)
local again = at + nth_delay(delay_list, looks)
redis.call('HSET', MONEY, number .. ' unknown', '1', number .. ' cause', code)
becomes_unknown(id, at, number, code)
if holder == token then redis.call('HSET', MONEY, number .. ' lease', '0', number .. ' token', '', number .. ' again', whole(again)) end
redis.call('ZADD', OPEN_PAYMENTS, whole(again), id)
return 'unknown'
