-- A leg's money has moved. True from whomever it comes and whatever the leg says by now.
-- KEYS   transition(id)
-- ARGV   id, number, 'refund' or 'fee', transaction, how it is known ('facilitator', 'chain', 'presumed'),
--        signed receipt JSON or ''
-- Result 'settled', 'known' or 'lost' (no such leg here)
local id, number, kind, tx = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local p = number .. ' ' .. kind .. ' '
local at = now()
local state, amount = unpack(redis.call('HMGET', MONEY, p .. 'state', p .. 'amount'))
if not state then
  book(id, at, kind .. '_settled_unknown_leg', number, '0', tx)
  return 'lost'
end
if state == 'settled' then return 'known' end
redis.call('HSET', MONEY, p .. 'state', 'settled', p .. 'tx', tx, p .. 'how', ARGV[5], p .. 'receipt', ARGV[6],
  p .. 'settled', whole(at), p .. 'lease', '0')
if kind == 'refund' then redis.call('HINCRBY', MONEY, number .. ' refunded', amount) end
redis.call('HINCRBY', SUMS, kind .. 's_due', -amount)
redis.call('HINCRBY', SUMS, kind .. 's_paid', amount)
redis.call('ZREM', LEGS, kind .. ' ' .. id .. ' ' .. number)
book(id, at, kind .. '_settled', number, amount, tx)
return 'settled'
