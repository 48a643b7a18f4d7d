-- Records that the money has moved. Accepted from any source, whatever the state of the record.
--
-- keys
--   log money record steps audits by_state deadlines ended express journal leases legs open_payments queued
--   stats sums timers transactions wallets contract(contract)
-- args
--   id
--   number
--   tx        the transaction
--   payload       what it becomes, or '' where it stays
--   requirements  the same
--   response      PAYMENT-RESPONSE
--   how       it is known: 'facilitator', 'chain', 'presumed' or 'operator'
--   audit     us after which the clock checks it on the chain, '' where no node is configured
--   contract  its reference
--   claimant  '1' where the request that claimed the payment asks
--   problem   JSON, where the seeker must send the input again
-- answers
--   completed  length of the log, record, money without what no answer shows
--   working    lane
--   input_due  a refused payment has dropped the input: the seeker sends it again
--   refund
--   known
--   lost       no such payment here

-- The fields of a hash, except these.
local function without(key, others)
  local all, kept = redis.call('HGETALL', key), {}
  for i = 1, #all, 2 do
    if not others[all[i]] then kept[#kept + 1], kept[#kept + 2] = all[i], all[i + 1] end
  end
  return kept
end

local at = now()
local current, paid, fee, fee_wallet, state, amount, calls, payer, hooks = unpack(redis.call('HMGET', MONEY, 'current',
  'paid', 'fee', 'fee_wallet', number .. ' state', number .. ' amount', number .. ' calls', number .. ' payer',
  number .. ' hooks'))
local first = redis.call('HGET', TRANSACTIONS, tx)
local execution, phase, sealed, lane, terminal, context, agent, parked, contract_ref, created, asker =
  unpack(get('state', 'phase', 'sealed_by', 'lane', 'terminal', 'context', 'agent', 'parked', 'contract', 'created',
    'asker'))
local jobs = redis.call('HEXISTS', STEPS, 'jobs')
local wallet = wallet_left(payer or '')
if not state then
  book(id, at, 'settled_unknown_payment', number, '0', tx)
  return {'lost'}
end
if state == 'settled' then return {'known'} end
if tx ~= '' and not first then
  redis.call('HSET', TRANSACTIONS, tx, id .. ' ' .. number)
elseif how == 'facilitator' and audit == '' and first and first ~= id .. ' ' .. number then
  -- One transaction may move several payments, but only a chain could tell.
  how = 'presumed'
end
local texts = payload ~= '' and {number .. ' payload', payload, number .. ' requirements', requirements} or {}
if hooks then choose_hooks(number, hooks, true) end
local of = {state = state, amount = amount, payer = payer, parked = parked, wallet = wallet}
turn_known(id, at, number, 'settled', tx, of, number .. ' tx', tx, number .. ' response', response, number .. ' how', how,
  number .. ' settled', whole(at), number .. ' lease', '0', 'paid', paid or number, unpack(texts))
budget_pay(payer, amount)
if how == 'presumed' then book(id, at, 'presumed', number, amount, tx ~= '' and tx or '-') end
-- Without a settle call of ours the chain itself reported it, for a payment that we never had.
if audit ~= '' and tonumber(calls or 0) > 0 then
  redis.call('ZADD', AUDITS, whole(at + tonumber(audit)), id .. ' ' .. number)
end
if current == number then redis.call('ZREM', OPEN_PAYMENTS, id) end
if paid then
  owe_refund(id, at, number, 'duplicate_payment')
  return {'refund'}
end
agent = agent or ''
redis.call('HINCRBY', STATS, 'worker_revenue_units_total{agent="' .. agent .. '"}', amount)
count('worker_settlements_total', 'agent', agent)
if not execution or TERMINAL[execution] then
  owe_refund(id, at, number, 'no_response')
  return {'refund'}
end
-- An earlier refusal had set an expiry on the contract.
redis.call('PERSIST', CONTRACT)
redis.call('HDEL', CONTRACT, 'unpaid')
-- An earlier payment landed late: the one claimed after it is no longer needed.
if current ~= number then
  local other = paid_with(current, 'state')
  if other == 'claimed' or other == 'verified' then
    turn(id, at, current, 'released', 'another payment landed')
    redis.call('ZREM', OPEN_PAYMENTS, id)
  end
end
local landed = event(at, 'payment.settled', '{"number":' .. number .. ',"transaction":' .. quoted(tx) .. '}')
if sealed then
  local length = finish(id, at, execution, 'completed', terminal, nil, nil, {lane = lane, contract = contract_ref,
    created = created, asker = asker, asker_knows = claimant == '1', sealed = true, jobs = jobs, event = landed,
    money = {current, number, fee, fee_wallet}})
  redis.call('HDEL', MONEY, number .. ' lease', number .. ' token', number .. ' verified', number .. ' waits',
    'fee', 'fee_wallet')
  return {'completed', length, redis.call('HGETALL', RECORD),
    without(MONEY, {[number .. ' payload'] = 1, [number .. ' requirements'] = 1})}
end
redis.call('RPUSH', LOG, landed)
redis.call('HSET', RECORD, 'phase', 'working', 'updated', whole(at))
if execution == 'pending' and phase ~= 'working' then
  if context == '' then
    redis.call('HSET', RECORD, 'due', '9007199254740991', 'parked', 'input', 'error', problem)
    redis.call('HINCRBY', RECORD, 'inputs_used', 1)
    emit(at, 'execution.reset', '{"reason":"parked","from_status":"pending"}')
    wake()
    tell('look')
    return {'input_due'}
  end
  queue(id, at, lane)
  if lane == 'express' then go_ahead(EXPRESS, id, at, redis.call('HGET', WALLETS, 'newcomers')) end
  wake()
  tell('look')
  return {'working', lane}
end
wake()
tell('look')
return {'known'}
