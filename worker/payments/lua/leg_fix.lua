-- Makes one leg of the fees that gathered for a wallet; what comes later gathers for the next leg.
-- KEYS   transition(wallet): a wallet's fee legs are numbered like an execution's payments
-- ARGV   wallet, amount from which a leg is made at once, longest time in us that a fee gathers
-- Result {'fixed', number, amount} or {'early'}
local wallet, threshold, period = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local gathering = 'fee ' .. wallet
local amount = redis.call('HGET', WALLETS, gathering)
local since = redis.call('ZSCORE', LEGS, gathering)
local at = now()
if not since then return {'early'} end
if not amount or tonumber(amount) <= 0 then
  redis.call('ZREM', LEGS, gathering)
  return {'early'}
end
if tonumber(amount) < threshold and at < tonumber(since) + period then return {'early'} end
local number = whole(redis.call('HINCRBY', MONEY, 'count', 1))
redis.call('HSET', MONEY, number .. ' fee state', 'due', number .. ' fee amount', amount, number .. ' fee ordinal', '0',
  number .. ' fee fixed', whole(at))
redis.call('HDEL', WALLETS, gathering)
redis.call('ZREM', LEGS, gathering)
redis.call('ZADD', LEGS, whole(at), gathering .. ' ' .. number)
book(wallet, at, 'fee_fixed', number, amount)
return {'fixed', number, amount}
