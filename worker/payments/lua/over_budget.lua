-- Whether a wallet may have one more run done before it pays, and how much would be done before it.
--
-- keys
--   wallets
-- args
--   payer
--   price
--   allowance
--   ahead  executions that wait or are being verified
-- returns
--   what forbids another run and for how long in us; '' and how many are counted before it when nothing does
local at = now()
local which, wait = over_budget(payer, price, allowance, at)
if which then return {which, whole(wait)} end
return {'', whole(line_ahead(tonumber(ahead), not pays_for_itself(payer, price, 1), at))}
