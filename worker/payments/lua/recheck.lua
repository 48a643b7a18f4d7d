-- Sends the payment of waiting work back to verification if the last one was too long ago. The work keeps its place.
--
-- keys
--   log money record open_payments wallets
-- args
--   id
-- returns
--   1 if the payment is to be verified now, else 0
local state, phase, sealed = unpack(get('state', 'phase', 'sealed_by'))
local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
if state ~= 'pending' or phase ~= 'working' or sealed or not number or paid then return 0 end
return verify_again(id, now(), number, paid_with(number, 'state', 'verified', 'payer', 'amount')) and 1 or 0
