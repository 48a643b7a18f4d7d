-- Binds a payment to a contract and makes the execution it buys, or gives an unpaid one its next payment.
-- KEYS   transition(id), contract, payment key, payment identifier, unpaid contracts, the lists a new execution stands in
-- ARGV   1 id, 2 payment key, 3 payer, 4 amount, 5 payload, 6 requirements, 7 valid before (s),
--        8 payment identifier or '', 9 body digest, 10 lane, 11 mode, 12 fee, 13 fee wallet, 14 contract ref,
--        15 deadline (us), 16 when the clock asks again (us), 17 most open of a wallet, 18 most refused of a wallet,
--        19 payload of execution.created, 20 who is to be told, 21 number of fields an unpaid record may still change,
--        then record fields
-- Result {'claimed', number}, {'same', id}, {'exists', id}, {'conflict'}, {'paying', phase}, {'used'}, {'identifier'},
--        {'unsigned'}, {'budget', which}, {'payments'} (too many came to nothing)
local id, key, payer, amount, digest = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[9]
local CONTRACT, PAYMENT, IDENTIFIER = KEYS[25], KEYS[26], KEYS[27]
local at = now()
local contract_state, execution, found = unpack(redis.call('HMGET', CONTRACT, 'state', 'execution', 'found_key'))
-- The chain has shown that the contract is paid for: nothing is verified, only that fact is still to be written.
found = found == key
if contract_state ~= 'signed' then return {'unsigned'} end
if execution and execution ~= id then return {'exists', execution} end
local bound = redis.call('GET', PAYMENT)
if bound then
  if string.sub(bound, 1, #id) == id then return {'same', id} end
  return {'used'}
end
if ARGV[8] ~= '' and redis.call('EXISTS', IDENTIFIER) == 1 then return {'identifier'} end
local phase, known_digest, sealed, started = unpack(get('phase', 'digest', 'sealed_by', 'first_started'))
if phase and phase ~= 'offered' and phase ~= 'payment_due' then return {'paying', phase} end
if sealed and known_digest ~= digest then return {'conflict'} end
-- What a payment leaves is kept for good, and an authorization over money that nobody has costs nothing to sign.
local most = sealed and 100 or 20
if not found and tonumber(redis.call('HGET', MONEY, 'count') or 0) >= most then return {'payments'} end
-- Paying for work that is done already is always welcome.
if not sealed and not found then
  local open = tonumber(redis.call('HGET', WALLETS, 'open ' .. payer) or 0)
  if open >= tonumber(ARGV[17]) then return {'budget', 'open'} end
  if unpaid_work(payer, at) >= tonumber(ARGV[18]) then return {'budget', 'refused'} end
end
if not phase then
  redis.call('HSET', RECORD, 'id', id, 'state', 'pending', 'lane', ARGV[10], 'attempt', '0', 'fence', '0',
    'created', whole(at), 'updated', whole(at), 'ends_by', ARGV[15], 'digest', digest, 'contract', ARGV[14],
    'hooks', ARGV[20], unpack(ARGV, 22))
  for i = 29, #KEYS do redis.call('ZADD', KEYS[i], whole(at), id) end
  redis.call('ZADD', BY_STATE.pending, whole(at), id)
  redis.call('ZADD', DEADLINES, ARGV[15], id)
  redis.call('HSET', CONTRACT, 'execution', id)
  redis.call('PERSIST', CONTRACT)
  redis.call('ZREM', KEYS[28], CONTRACT)
  redis.call('HSET', MONEY, 'contract', ARGV[14], 'mode', ARGV[11], 'fee', ARGV[12], 'fee_wallet', ARGV[13])
  emit(at, 'execution.created', ARGV[19])
  count('worker_executions_total', 'status', 'created')
elseif known_digest ~= digest then
  -- Nothing is sealed, so nothing is owed: another input may come with another payment.
  redis.call('HSET', RECORD, 'digest', digest, unpack(ARGV, 22, 21 + 2 * tonumber(ARGV[21])))
  redis.call('DEL', STEPS)
  redis.call('HSET', RECORD, 'said', '0', 'marks', '0')
end
local number = redis.call('HINCRBY', MONEY, 'count', 1)
-- Anybody may send a payment that will be refused: whom this one names is told only when it is accepted.
if phase and not started then redis.call('HSET', MONEY, number .. ' hooks', ARGV[20]) end
redis.call('HSET', RECORD, 'phase', found and 'settling' or 'verifying', 'updated', whole(at))
redis.call('HSET', MONEY, 'current', number, number .. ' state', found and 'settling' or 'claimed', number .. ' key', key,
  number .. ' payer', payer, number .. ' amount', amount, number .. ' payload', ARGV[5],
  number .. ' requirements', ARGV[6], number .. ' valid_before', ARGV[7], number .. ' claimed', whole(at))
redis.call('SET', PAYMENT, id .. ' ' .. number)
if ARGV[8] ~= '' then redis.call('SET', IDENTIFIER, id .. ' ' .. number) end
redis.call('ZADD', OPEN, whole(at + tonumber(ARGV[16])), id)
redis.call('HINCRBY', SUMS, 'claimed', amount)
redis.call('HINCRBY', SUMS, 'open', amount)
redis.call('HINCRBY', WALLETS, 'open ' .. payer, 1)
book(id, at, 'claimed', number, amount, key)
emit(at, 'payment.claimed', '{"number":' .. number .. '}')
wake()
return {'claimed', tostring(number)}
