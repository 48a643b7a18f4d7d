-- The authorization of a parked execution can no longer be settled: releases it and waits for another payment.
--
-- keys
--   log money record journal open_payments sums wallets
-- args
--   id
-- answers
--   payment_due
--   gone
local state, parked = unpack(get('state', 'parked'))
local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
if paid or not number or state ~= 'pending' or (parked or '') == '' then return 'gone' end
let_go(id, now(), number)
return 'payment_due'
