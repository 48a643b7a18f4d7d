-- Lets a leg be signed anew. With the same ordinal it has the same nonce, so that is safe at any time and is the
-- operator's to ask; the next ordinal is taken only with the chain's word that the last one can never land.
-- KEYS   transition(id)
-- ARGV   id, number, 'refund' or 'fee', ordinal that can never land ('' for the operator's retry),
--        how long after its end an authorization may still be confirmed (us)
-- Result 'due', 'early' (the last call may still land) or 'gone'
local id, number, kind, dead = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local p = number .. ' ' .. kind .. ' '
local at = now()
local state, ordinal, amount, valid_before, held = unpack(redis.call('HMGET', MONEY,
  p .. 'state', p .. 'ordinal', p .. 'amount', p .. 'valid_before', p .. 'lease'))
if state ~= 'refused' and state ~= 'settling' and state ~= 'unknown' then return 'gone' end
if dead ~= '' then
  if dead ~= ordinal or state == 'refused' then return 'gone' end
  ordinal = redis.call('HINCRBY', MONEY, p .. 'ordinal', 1)
elseif state ~= 'refused' then
  local over = (tonumber(valid_before or 0)) * 1e6 + tonumber(ARGV[5])
  if tonumber(held or 0) > at or at <= over then return 'early' end
end
redis.call('HDEL', MONEY, p .. 'payload', p .. 'requirements', p .. 'unknown', p .. 'calls', p .. 'cause', p .. 'hash',
  p .. 'code', p .. 'valid_before', p .. 'token')
redis.call('HSET', MONEY, p .. 'state', 'due', p .. 'lease', '0')
redis.call('ZADD', LEGS, whole(at), kind .. ' ' .. id .. ' ' .. number)
book(id, at, kind .. '_again', number, amount, ordinal)
return 'due'
