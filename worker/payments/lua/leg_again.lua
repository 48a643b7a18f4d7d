-- Lets a leg be signed anew. With the same ordinal it has the same nonce, so the operator may safely ask for that at
-- any time; the next ordinal is taken only when the chain shows that the last one can never land.
--
-- keys
--   money=hash journal legs
-- args
--   id
--   number
--   kind       'refund' or 'fee'
--   dead       ordinal that can never land, '' for the operator's retry
--   confirmed  us after its end in which an authorization may still be confirmed
-- answers
--   due
--   early  the last call may still land
--   gone
local p = number .. ' ' .. kind .. ' '
local at = now()
local state, ordinal, amount, valid_before, held = unpack(redis.call('HMGET', MONEY,
  p .. 'state', p .. 'ordinal', p .. 'amount', p .. 'valid_before', p .. 'lease'))
if state ~= 'refused' and state ~= 'settling' and state ~= 'unknown' then return 'gone' end
if dead ~= '' then
  if dead ~= ordinal or state == 'refused' then return 'gone' end
  ordinal = redis.call('HINCRBY', MONEY, p .. 'ordinal', 1)
elseif state ~= 'refused' then
  local over = (tonumber(valid_before or 0)) * 1e6 + tonumber(confirmed)
  if tonumber(held or 0) > at or at <= over then return 'early' end
end
redis.call('HDEL', MONEY, p .. 'payload', p .. 'requirements', p .. 'unknown', p .. 'calls', p .. 'cause', p .. 'hash',
  p .. 'code', p .. 'valid_before', p .. 'token')
redis.call('HSET', MONEY, p .. 'state', 'due', p .. 'lease', '0')
redis.call('ZADD', LEGS, whole(at), kind .. ' ' .. id .. ' ' .. number)
book(id, at, kind .. '_again', number, amount, ordinal)
return 'due'
