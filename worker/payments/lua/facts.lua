-- Reads at one moment what decides about a request before money: its contract, the load of its lane, whether the
-- contract may have been paid for in a time that the store has lost, and the wallet's budget.
--
-- keys
--   contract(contract) payment(key) waits=any takers=zset leases life stats ticks verifying wallets writers
-- args
--   agent
--   lane
--   silence     us in which a taker must have signed
--   signed      when the contract was signed, us
--   registered  the same of a contract that is not stored, us
--   longest     us after its claim that an authorization for it may still land
--   payer       '' where nobody proves a wallet
--   price
--   allowance
-- returns
--   hash, execution, found payment's key, time of registration and of the draft, each or '';
--   what the payment's key is bound to or '';
--   the load as load.lua returns it;
--   how long (us) the contract must not be asked for money, 0 when it may be;
--   what forbids the wallet another run and for how long in us; '' and how many executions are counted before it
--   when nothing does
local at = now()
local contract = redis.call('HMGET', CONTRACT, 'hash', 'execution', 'found_key', 'registered', 'drafted')
for i = 1, 5 do contract[i] = contract[i] or '' end
local bound = redis.call('GET', PAYMENT)
local wallet = wallet_of(payer)
local load = lane_load(at, agent, lane, silence)
local known = look_at_life(at)
local stored = contract[4] ~= '' and contract[4] or registered
local held = held_for(at, known, tonumber(signed), tonumber(stored), tonumber(longest))
local ahead = load[2] + load[7]
local which, number = '', ahead
if payer ~= '' then
  which, number = over_budget(wallet, price, allowance, at)
  if not which then which, number = '', line_ahead(ahead, not pays_for_itself(wallet, price, 1), wallet, at) end
end
return {contract, bound or '', load, whole(held), which, whole(number)}
