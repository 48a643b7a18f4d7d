-- Money that arrived and that no payment in the ledger explains: bound to what it can only be for, or listed.
-- KEYS   transition(id), contract, payment key, found by time, what is known of each, unpaid contracts
-- ARGV   id (an execution that waits for a payment, a contract's reference, or '-'),
--        'execution', 'contract', 'list' or 'odd' (a payment has its key, but does not fit),
--        name of the transfer, its line, its time (us), most listed, payer, amount, payment key, payload, requirements,
--        valid before (s), transaction
-- Result {'bound', number}, {'waits'} (for its contract's seeker), {'listed'}, {'known'} or {'taken'} (look again)
local id, mode, name, line = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local payer, amount, key, payload, requirements = ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local CONTRACT, PAYMENT, FOUND, ABOUT, UNPAID = KEYS[25], KEYS[26], KEYS[27], KEYS[28], KEYS[29]
local at = now()

local function list(outcome)
  redis.call('ZADD', FOUND, ARGV[5], name)
  redis.call('HSET', ABOUT, name, line .. ' ' .. outcome)
  local old = redis.call('ZRANGE', FOUND, 0, -tonumber(ARGV[6]) - 1)
  for _, each in ipairs(old) do
    redis.call('ZREM', FOUND, each)
    redis.call('HDEL', ABOUT, each)
  end
end

if redis.call('HEXISTS', ABOUT, name) == 1 then return {'known'} end
if redis.call('EXISTS', PAYMENT) == 1 and mode ~= 'odd' then return {'known'} end

if mode == 'list' or mode == 'odd' then
  list('listed')
  return {'listed'}
end

if mode == 'contract' then
  local state, execution, found = unpack(redis.call('HMGET', CONTRACT, 'state', 'execution', 'found'))
  if state ~= 'signed' or execution or found then return {'taken'} end
  redis.call('HSET', CONTRACT, 'found', payload, 'found_key', key, 'found_tx', ARGV[13])
  redis.call('PERSIST', CONTRACT)
  redis.call('ZREM', UNPAID, CONTRACT)
  list('contract ' .. id)
  book(id, at, 'found', '0', amount, ARGV[13])
  return {'waits'}
end

local phase = redis.call('HGET', RECORD, 'phase')
local paid = redis.call('HGET', MONEY, 'paid')
if (phase ~= 'offered' and phase ~= 'payment_due') or paid then return {'taken'} end
local number = redis.call('HINCRBY', MONEY, 'count', 1)
redis.call('HSET', MONEY, 'current', number, number .. ' state', 'settling', number .. ' key', key,
  number .. ' payer', payer, number .. ' amount', amount, number .. ' payload', payload,
  number .. ' requirements', requirements, number .. ' valid_before', ARGV[12], number .. ' claimed', whole(at),
  number .. ' unknown', '1')
redis.call('HSET', RECORD, 'phase', 'settling', 'updated', whole(at))
redis.call('SET', PAYMENT, id .. ' ' .. number)
redis.call('HINCRBY', SUMS, 'claimed', amount)
redis.call('HINCRBY', SUMS, 'open', amount)
redis.call('HINCRBY', WALLETS, 'open ' .. payer, 1)
list('execution ' .. id)
book(id, at, 'claimed', number, amount, key)
book(id, at, 'found', number, amount, ARGV[13])
return {'bound', tostring(number)}
