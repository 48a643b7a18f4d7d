-- Debts that follow from a payment: the seeker's refund, or the contract's platform fee. Each is owed once; the
-- clock signs and settles it.

-- Refunds money that bought nothing.
local function owe_refund(id, at, number, reason)
  local amount, owed, payer = paid_with(number, 'amount', 'refund state', 'payer')
  if owed then return end
  budget_pay(payer, -amount)
  redis.call('HSET', MONEY, number .. ' refund state', 'due', number .. ' refund amount', amount,
    number .. ' refund reason', reason)
  redis.call('HINCRBY', SUMS, 'refunds_due', amount)
  redis.call('ZADD', LEGS, whole(at), 'refund ' .. id .. ' ' .. number)
  book(id, at, 'refund_due', number, amount, reason)
end

-- Adds the contract's platform fee on a payment that bought its result; fees accumulate per wallet.
local function owe_fee(id, at, number, fee, wallet)
  if not fee or tonumber(fee) == 0 then return end
  redis.call('HINCRBY', SUMS, 'fees_due', fee)
  redis.call('ZADD', LEGS, 'NX', whole(at), 'fee ' .. wallet)
  redis.call('HINCRBY', WALLETS, 'fee ' .. wallet, fee)
  book(id, at, 'fee_due', number, fee, wallet)
end
