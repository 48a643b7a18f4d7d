-- Keeps what is about to be sent: from now on only these bytes are, until the chain shows that they cannot land.
-- KEYS   transition(id)
-- ARGV   id, number, 'refund' or 'fee', token of the caller, payload, requirements
-- Result 'go' or 'lost' (somebody else took the leg over)
local id, number, kind = ARGV[1], ARGV[2], ARGV[3]
local p = number .. ' ' .. kind .. ' '
local state, holder, payload, amount, ordinal = unpack(redis.call('HMGET', MONEY,
  p .. 'state', p .. 'token', p .. 'payload', p .. 'amount', p .. 'ordinal'))
if state ~= 'settling' or holder ~= ARGV[4] or payload then return 'lost' end
redis.call('HSET', MONEY, p .. 'payload', ARGV[5], p .. 'requirements', ARGV[6], p .. 'calls', '1')
book(id, now(), kind .. '_call', number, amount, ordinal)
return 'go'
