-- Renews the lease on a leg during a facilitator call.
--
-- keys
--   money=hash legs
-- args
--   id
--   number
--   kind    'refund' or 'fee'
--   token
--   lease   us
-- returns
--   1 or 0
local p = number .. ' ' .. kind .. ' '
local state, holder = unpack(redis.call('HMGET', MONEY, p .. 'state', p .. 'token'))
if holder ~= token or (state ~= 'settling' and state ~= 'unknown') then return 0 end
local until_ = whole(now() + tonumber(lease))
redis.call('HSET', MONEY, p .. 'lease', until_)
redis.call('ZADD', LEGS, 'XX', until_, kind .. ' ' .. id .. ' ' .. number)
return 1
