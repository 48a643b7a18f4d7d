-- Stores what is about to be sent: from now on only these bytes are sent, until the chain shows they cannot land.
--
-- keys
--   money=hash journal
-- args
--   id
--   number
--   kind          'refund' or 'fee'
--   token         of the caller
--   new_payload
--   requirements
-- answers
--   go
--   lost  somebody else took the leg over
local p = number .. ' ' .. kind .. ' '
local state, holder, payload, amount, ordinal = unpack(redis.call('HMGET', MONEY,
  p .. 'state', p .. 'token', p .. 'payload', p .. 'amount', p .. 'ordinal'))
if state ~= 'settling' or holder ~= token or payload then return 'lost' end
redis.call('HSET', MONEY, p .. 'payload', new_payload, p .. 'requirements', requirements, p .. 'calls', '1')
book(id, now(), kind .. '_call', number, amount, ordinal)
return 'go'
