-- Returns a settlement lease with which no call was made. Without a pause, requests that wait are told to settle; else
-- the clock tries again soon.
--
-- keys
--   money record journal open_payments
-- args
--   id
--   number
--   token
--   pause  us
-- returns
--   1 or 0
local at = now()
local state, holder, calls, unknown, refusal, amount, hooks =
  paid_with(number, 'state', 'token', 'calls', 'unknown', 'refusal', 'amount', 'hooks')
if holder ~= token or (state ~= 'settling' and state ~= 'unknown') then return 0 end
if state == 'settling' and tonumber(calls) == 1 and not unknown then
  advance(id, at, number, 'verified', amount, hooks)
end
-- A lease to look at the chain after a refusal counted no call.
if not refusal then redis.call('HINCRBY', MONEY, number .. ' calls', -1) end
redis.call('HSET', MONEY, number .. ' lease', '0', number .. ' again', whole(at + tonumber(pause)))
redis.call('ZADD', OPEN_PAYMENTS, whole(at + tonumber(pause)), id)
if pause == '0' then tell('settle') end
return 1
