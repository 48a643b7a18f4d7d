-- Binds a payment to a contract and creates the execution it buys, or gives an unpaid one its next payment.
--
-- keys
--   log money record steps contract(contract) payment(key) payment_identifier(identifier_scope,identifier)
--   indexes*=zset by_state.pending contracts deadlines express journal life open_payments queued stats sums verifying
--   wallets writers
-- args
--   id
--   key           of the payment
--   payer
--   amount
--   payload
--   requirements
--   valid_before  seconds
--   identifier    or ''
--   identifier_scope  within which the identifier names one payment
--   digest        of the body
--   lane
--   mode
--   fee
--   fee_wallet
--   contract      its reference
--   deadline      us
--   verify_by     us after which the clock asks again
--   allowance     the wallet's
--   created       payload of execution.created
--   hooks         webhooks to notify
--   changeable    how many fields an unpaid record may still change
--   writer        writing process
--   signed        when the contract was signed, us
--   longest       us within which an authorization for it may still land
--   document      of a purchase without a contract, which is made with its claim; or ''
--   hash          of that document
--   drafted       when the purchase was agreed, us
--   most_ahead    executions that may be ahead of it, so that it is done in time
--   asker         channel of the process that claims it
--   fields*       record fields, those first
-- answers
--   claimed     number, writes, life, '1' where it must be on a replica too
--   held        how long (us); it may have been paid for in a period that the store lost
--   same        id
--   exists      id
--   conflict
--   paying      phase
--   used
--   identifier
--   unsigned
--   budget      which, wait in us
--   payments    too many failed
--   busy        how many executions are ahead of it
local at = now()
local life, replicated = look_at_life(at)
local contract_state, execution, found, registered, unpaid = unpack(redis.call('HMGET', CONTRACT, 'state', 'execution',
  'found_key', 'registered', 'unpaid'))
-- The chain has shown that the contract is paid for: skip verification, only record that fact.
found = found == key
if not contract_state and document ~= '' then contract_state = 'signed' end
if contract_state ~= 'signed' then return {'unsigned'} end
if execution and execution ~= id then return {'exists', execution} end
local bound = redis.call('GET', PAYMENT)
if bound then
  if string.sub(bound, 1, #id) == id then return {'same', id} end
  return {'used'}
end
if not found then
  local held = held_for(at, tonumber(signed), tonumber(registered or 0), tonumber(longest))
  if held > 0 then return {'held', whole(held)} end
end
if identifier ~= '' and redis.call('EXISTS', PAYMENT_IDENTIFIER) == 1 then return {'identifier'} end
local phase, known_digest, sealed, started = unpack(get('phase', 'digest', 'sealed_by', 'first_started'))
if phase and phase ~= 'offered' and phase ~= 'payment_due' then return {'paying', phase} end
if sealed and known_digest ~= digest then return {'conflict'} end
-- A payment's record is permanent, and signing an authorization without funds costs nothing.
local most = sealed and 100 or 20
if not found and tonumber(redis.call('HGET', MONEY, 'count') or 0) >= most then return {'payments'} end
local newcomer = false
-- Payment for work that is already done is always accepted.
if not sealed and not found then
  local which, wait = over_budget(payer, amount, allowance, at)
  if which then return {'budget', which, whole(wait)} end
  newcomer = not pays_for_itself(payer, amount, 1)
  -- A claim not verified by then waits for its facilitator and is ahead of nobody.
  redis.call('ZREMRANGEBYSCORE', VERIFYING, '-inf', '(' .. whole(at - 30e6))
  local ahead = redis.call('ZCARD', VERIFYING)
  ahead = ahead + (lane == 'express' and redis.call('LLEN', EXPRESS) or redis.call('ZCARD', QUEUED))
  ahead = line_ahead(ahead, newcomer, at)
  if ahead > tonumber(most_ahead) then return {'busy', whole(ahead)} end
end
if not phase then
  redis.call('HSET', RECORD, 'id', id, 'state', 'pending', 'lane', lane, 'attempt', '0', 'fence', '0',
    'created', whole(at), 'updated', whole(at), 'ends_by', deadline, 'digest', digest, 'contract', contract,
    unpack(fields))
  if hooks ~= '' then redis.call('HSET', RECORD, 'hooks', hooks) end
  for _, key in ipairs(INDEXES) do redis.call('ZADD', key, whole(at), id) end
  redis.call('ZADD', BY_STATE.pending, whole(at), id)
  redis.call('ZADD', DEADLINES, deadline, id)
  if document ~= '' then
    redis.call('HSET', CONTRACT, 'document', document, 'hash', hash, 'state', 'signed', 'created', drafted,
      'registered', whole(at))
  end
  redis.call('HSET', CONTRACT, 'execution', id)
  redis.call('PERSIST', CONTRACT)
  redis.call('ZREM', CONTRACTS, CONTRACT)
  redis.call('HSET', MONEY, 'contract', contract, 'mode', mode, 'fee', fee, 'fee_wallet', fee_wallet)
  -- Its bytes count as unpaid until a payment is verified.
  if unpaid and not found then redis.call('HSET', MONEY, 'unpaid', unpaid) end
  emit(at, 'execution.created', created)
  count('worker_executions_total', 'status', 'created')
elseif not sealed then
  -- Nothing is sealed, so nothing is owed: another input may come with another payment. A refused payment has
  -- dropped the input, even if it is the same.
  redis.call('HSET', RECORD, 'digest', digest, unpack(fields, 1, 2 * tonumber(changeable)))
  redis.call('PERSIST', CONTRACT)
  if known_digest ~= digest then
    redis.call('DEL', STEPS)
    redis.call('HSET', RECORD, 'said', '0', 'marks', '0')
  end
end
local number = redis.call('HINCRBY', MONEY, 'count', 1)
-- Anybody may send a payment that will be refused: its hooks are notified only once it is accepted.
if phase and not started then redis.call('HSET', MONEY, number .. ' hooks', hooks) end
redis.call('HSET', RECORD, 'phase', found and 'settling' or 'verifying', 'updated', whole(at), 'asker', asker)
redis.call('HSET', MONEY, 'current', number, number .. ' state', found and 'settling' or 'claimed', number .. ' key', key,
  number .. ' payer', payer, number .. ' amount', amount, number .. ' payload', payload,
  number .. ' requirements', requirements, number .. ' valid_before', valid_before, number .. ' claimed', whole(at))
redis.call('SET', PAYMENT, id .. ' ' .. number)
if identifier ~= '' then redis.call('SET', PAYMENT_IDENTIFIER, id .. ' ' .. number) end
redis.call('ZADD', OPEN_PAYMENTS, whole(at + tonumber(verify_by)), id)
if not found then redis.call('ZADD', VERIFYING, whole(at), id) end
if newcomer then newcomer_comes(id, tonumber(valid_before) * 1e6, at) end
redis.call('HINCRBY', SUMS, 'claimed', amount)
redis.call('HINCRBY', SUMS, 'open', amount)
redis.call('HINCRBY', WALLETS, 'open ' .. payer, 1)
book(id, at, 'claimed', number, amount, key)
emit(at, 'payment.claimed', '{"number":' .. number .. '}')
wake()
return {'claimed', tostring(number), count_write(at, writer), life, replicated}
