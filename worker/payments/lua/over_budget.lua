-- Whether a wallet may have one more run done before it pays.
--
-- keys
--   wallets
-- args
--   payer
--   price
--   allowance
-- returns
--   what forbids another run and for how long in us; nothing when nothing does
local which, wait = over_budget(payer, price, allowance, now())
return which and {which, whole(wait)} or {}
