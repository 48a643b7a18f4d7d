-- Renews the settlement lease during a facilitator call.
--
-- keys
--   money open_payments
-- args
--   id
--   number
--   token
--   lease   us
-- returns
--   1 or 0
local state, holder = paid_with(number, 'state', 'token')
if holder ~= token or (state ~= 'settling' and state ~= 'unknown') then return 0 end
local until_ = whole(now() + tonumber(lease))
redis.call('HSET', MONEY, number .. ' lease', until_)
redis.call('ZADD', OPEN_PAYMENTS, 'XX', until_, id)
return 1
