-- The authorization of a parked execution can no longer be settled: it is let go, another payment is waited for.
-- KEYS   transition(id)
-- ARGV   id
-- Result 'payment_due' or 'gone'
local id = ARGV[1]
local state, parked = unpack(get('state', 'parked'))
local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
if paid or not number or state ~= 'pending' or (parked or '') == '' then return 'gone' end
let_go(id, now(), number)
return 'payment_due'
