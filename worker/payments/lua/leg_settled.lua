-- A leg's money has moved. Valid from any source, whatever the state of the leg.
--
-- keys
--   money=hash journal legs sums
-- args
--   id
--   number
--   kind     'refund' or 'fee'
--   tx       the transaction
--   how      it is known: 'facilitator', 'chain' or 'presumed'
--   receipt  signed, as JSON, or ''
-- answers
--   settled
--   known
--   lost     no such leg here
local p = number .. ' ' .. kind .. ' '
local at = now()
local state, amount = unpack(redis.call('HMGET', MONEY, p .. 'state', p .. 'amount'))
if not state then
  book(id, at, kind .. '_settled_unknown_leg', number, '0', tx)
  return 'lost'
end
if state == 'settled' then return 'known' end
redis.call('HSET', MONEY, p .. 'state', 'settled', p .. 'tx', tx, p .. 'how', how, p .. 'receipt', receipt,
  p .. 'settled', whole(at), p .. 'lease', '0')
if kind == 'refund' then redis.call('HINCRBY', MONEY, number .. ' refunded', amount) end
redis.call('HINCRBY', SUMS, kind .. 's_due', -amount)
redis.call('HINCRBY', SUMS, kind .. 's_paid', amount)
redis.call('ZREM', LEGS, kind .. ' ' .. id .. ' ' .. number)
book(id, at, kind .. '_settled', number, amount, tx)
return 'settled'
