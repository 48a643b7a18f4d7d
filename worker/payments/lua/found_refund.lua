-- Records the operator's decision to refund found money: it becomes a payment that bought nothing.
--
-- keys
--   money payment(key) found found_about journal sums wallets
-- args
--   id        new, of no execution
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
--   bound         the ledger's entry that the caller read under that key, or ''
-- answers
--   bound  number
--   known
if settled_place(transfer) or (redis.call('GET', PAYMENT) or '') ~= bound then return {'known'} end
local at = now()
redis.call('HSET', MONEY, 'contract', '-', 'mode', 'after_work', 'count', '1', 'current', '1', '1 state', 'settling',
  '1 key', key, '1 payer', payer, '1 amount', amount, '1 payload', payload, '1 requirements', requirements,
  '1 valid_before', valid_before, '1 claimed', whole(at), '1 unknown', '1')
redis.call('SET', PAYMENT, id .. ' 1', 'NX')
redis.call('HINCRBY', SUMS, 'claimed', amount)
redis.call('HINCRBY', SUMS, 'open', amount)
redis.call('HINCRBY', WALLETS, 'open ' .. payer, 1)
list_found(transfer, line, moved, most, 'refund ' .. id)
book(id, at, 'claimed', '1', amount, key)
book(id, at, 'found', '1', amount, tx)
return {'bound', '1'}
