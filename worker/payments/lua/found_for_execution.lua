-- Binds money that arrived to the execution that waits for exactly this payment.
--
-- keys
--   money record payment(key) found found_about journal sums wallets
-- args
--   id
--   transfer  its name
--   line      what the list says of it
--   moved     its time, us
--   most      listed
--   payer
--   amount
--   key           of the payment
--   payload
--   requirements
--   valid_before  seconds
--   tx            transaction
-- answers
--   bound  number
--   known
--   taken  look again
if settled_place(transfer) or redis.call('GET', PAYMENT) then return {'known'} end
local phase = redis.call('HGET', RECORD, 'phase')
local paid = redis.call('HGET', MONEY, 'paid')
if (phase ~= 'offered' and phase ~= 'payment_due') or paid then return {'taken'} end
local at = now()
local number = redis.call('HINCRBY', MONEY, 'count', 1)
redis.call('HSET', MONEY, 'current', number, number .. ' state', 'settling', number .. ' key', key,
  number .. ' payer', payer, number .. ' amount', amount, number .. ' payload', payload,
  number .. ' requirements', requirements, number .. ' valid_before', valid_before, number .. ' claimed', whole(at),
  number .. ' unknown', '1')
redis.call('HSET', RECORD, 'phase', 'settling', 'updated', whole(at))
redis.call('SET', PAYMENT, id .. ' ' .. number)
redis.call('HINCRBY', SUMS, 'claimed', amount)
redis.call('HINCRBY', SUMS, 'open', amount)
redis.call('HINCRBY', WALLETS, 'open ' .. payer, 1)
list_found(transfer, line, moved, most, 'execution ' .. id)
book(id, at, 'claimed', number, amount, key)
book(id, at, 'found', number, amount, tx)
return {'bound', tostring(number)}
