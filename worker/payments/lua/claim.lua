-- Binds a payment to a contract and creates the execution it buys, or gives an unpaid one its next payment.
--
-- keys
--   log money record steps contract(contract) payment(key) payment_identifier(identifier_scope,identifier)
--   indexes*=zset by_state.pending contracts deadlines express journal life open_payments queued stats sums timers
--   unpaid unpaid_new unpaid_bytes verifying wallets writers
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
--   most_payments  of an execution whose work is not sealed
--   most_payments_sealed
--   writer        writing process
--   signed        when the contract was signed, us
--   longest       us within which an authorization for it may still land
--   document      of a purchase without a contract, which is made with its claim; or ''
--   hash          of the contract's document
--   drafted       when the purchase was agreed, us
--   most_ahead    executions that may be ahead of it, so that it is done in time
--   assumed       time (us) of which the caller assumes what it has not read, or ''
--   asker         channel of the process that claims it
--   verified      '' but where the facilitator would settle it, and it is the first payment for short work without a
--                 promised latency, paid for afterwards: '1' where the request waits in the asker's process, else '0'
--   fields*       record fields, those first
-- answers
--   claimed     number, writes, life, '1' where it must be on a replica too, '1' where its work has begun
--   held        how long (us); it may have been paid for in a period that the store lost
--   same        id
--   exists      id
--   conflict
--   paying      phase
--   used
--   identifier
--   unsigned    or not as the caller knows it
--   found       the chain has shown another payment for it, and the seeker has not sent the input since
--   late        that time is too far from now
--   budget      which, wait in us
--   payments    too many failed
--   busy        how many executions are ahead of it

-- Times (us) differ by more only if the process was frozen or a clock has moved.
local CLOSE = 1e6
local at = now()
local contract_state, execution, found_key, registered, unpaid, known_hash = unpack(redis.call('HMGET', CONTRACT, 'state',
  'execution', 'found_key', 'registered', 'unpaid', 'hash'))
-- The chain has shown that the contract is paid for: skip verification, only record that fact.
local found = found_key == key
if not contract_state and document ~= '' then contract_state, known_hash = 'signed', hash end
if contract_state ~= 'signed' then return {'unsigned'} end
if execution and execution ~= id then return {'exists', execution} end
if known_hash ~= hash then return {'unsigned'} end
if assumed ~= '' and math.abs(at - tonumber(assumed)) > CLOSE then return {'late'} end
if found_key and not found and not execution then return {'found'} end
local bound = redis.call('GET', PAYMENT)
if bound then
  if string.sub(bound, 1, #id) == id then return {'same', id} end
  return {'used'}
end
local named = redis.call('GET', PAYMENT_IDENTIFIER)
local phase, known_digest, sealed, started = unpack(get('phase', 'digest', 'sealed_by', 'first_started'))
local payments = tonumber(redis.call('HGET', MONEY, 'count') or 0)
local wallet = wallet_of(payer)
-- A claim not verified by then waits for its facilitator and is ahead of nobody.
local verified_by = whole(at - 30e6)
local verifying = redis.call('ZCOUNT', VERIFYING, verified_by, '+inf')
local waiting = redis.call('LLEN', EXPRESS)
local known, replicated = look_at_life(at)
if not found then
  local held = held_for(at, known, tonumber(signed), tonumber(registered or 0), tonumber(longest))
  if held > 0 then return {'held', whole(held)} end
end
if identifier ~= '' and named then return {'identifier'} end
if phase and phase ~= 'offered' and phase ~= 'payment_due' then return {'paying', phase} end
if sealed and known_digest ~= digest then return {'conflict'} end
if not found and payments >= tonumber(sealed and most_payments_sealed or most_payments) then return {'payments'} end
local newcomer = false
-- Payment for work that is already done is always accepted.
if not sealed and not found then
  local which, wait = over_budget(wallet, amount, allowance, at)
  if which then return {'budget', which, whole(wait)} end
  newcomer = not pays_for_itself(wallet, amount, 1)
  local ahead = verifying + (lane == 'express' and waiting or redis.call('ZCARD', QUEUED))
  ahead = line_ahead(ahead, newcomer, wallet, at)
  if ahead > tonumber(most_ahead) then return {'busy', whole(ahead)} end
end
local number = payments + 1
local begins = verified ~= '' and not phase and not found
local state = found and 'settling' or begins and 'verified' or 'claimed'
local claimed_phase = found and 'settling' or begins and 'working' or 'verifying'
local money, about = {}, '{"number":' .. number .. '}'
local events = {event(at, 'payment.claimed', about)}
local lines = {journal_line(id, at, 'claimed', number, amount, key)}
if begins then
  fields[#fields + 1], fields[#fields + 2] = 'verified', whole(at)
  events[2] = event(at, 'payment.verified', about)
  lines[2] = journal_line(id, at, 'verified', number, amount)
end
if not phase then
  redis.call('HSET', RECORD, 'id', id, 'state', 'pending', 'lane', lane, 'attempt', '0', 'fence', '0',
    'created', whole(at), 'updated', whole(at), 'ends_by', deadline, 'digest', digest, 'contract', contract,
    'phase', claimed_phase, 'asker', asker, unpack(fields))
  if hooks ~= '' then redis.call('HSET', RECORD, 'hooks', hooks) end
  for _, index in ipairs(INDEXES) do redis.call('ZADD', index, whole(at), id) end
  redis.call('ZADD', BY_STATE.pending, whole(at), id)
  redis.call('ZADD', DEADLINES, deadline, id)
  if document ~= '' then
    redis.call('HSET', CONTRACT, 'execution', id, 'document', document, 'hash', hash, 'state', 'signed',
      'created', drafted, 'registered', whole(at))
  else
    redis.call('HSET', CONTRACT, 'execution', id)
  end
  redis.call('PERSIST', CONTRACT)
  redis.call('ZREM', CONTRACTS, CONTRACT)
  -- Its bytes count as unpaid until a payment is verified.
  if unpaid and begins then unpaid_release(unpaid) end
  local more = begins and {number .. ' verified', whole(at), number .. ' waits', verified}
    or unpaid and not found and {'unpaid', unpaid} or {}
  money = {'contract', contract, 'mode', mode, 'fee', fee, 'fee_wallet', fee_wallet, unpack(more)}
  redis.call('RPUSH', LOG, event(at, 'execution.created', created), unpack(events))
  count('worker_executions_total', 'status', 'created')
else
  local input = {}
  if not sealed then
    -- Nothing is sealed, so nothing is owed: another input may come with another payment. A refused payment has
    -- dropped the input, even if it is the same.
    input = {'digest', digest, unpack(fields, 1, 2 * tonumber(changeable))}
    redis.call('PERSIST', CONTRACT)
    if known_digest ~= digest then
      redis.call('DEL', STEPS)
      redis.call('HSET', RECORD, 'said', '0', 'marks', '0')
    end
  end
  redis.call('HSET', RECORD, 'phase', claimed_phase, 'updated', whole(at), 'asker', asker, unpack(input))
  -- Anybody may send a payment that will be refused: its hooks are notified only once it is accepted.
  if not started then money = {number .. ' hooks', hooks} end
  redis.call('RPUSH', LOG, unpack(events))
end
redis.call('HSET', MONEY, 'count', number, 'current', number, number .. ' state', state, number .. ' key', key,
  number .. ' payer', payer, number .. ' amount', amount, number .. ' payload', payload,
  number .. ' requirements', requirements, number .. ' valid_before', valid_before, number .. ' claimed', whole(at),
  unpack(money))
redis.call('SET', PAYMENT, id .. ' ' .. number)
if identifier ~= '' then redis.call('SET', PAYMENT_IDENTIFIER, id .. ' ' .. number) end
if not begins then redis.call('ZADD', OPEN_PAYMENTS, whole(at + tonumber(verify_by)), id) end
if not found and not begins then
  redis.call('ZREMRANGEBYSCORE', VERIFYING, '-inf', '(' .. verified_by)
  redis.call('ZADD', VERIFYING, whole(at), id)
end
local newcomers_now = newcomer and newcomer_comes(id, tonumber(valid_before) * 1e6, wallet, at)
redis.call('HSET', WALLETS, 'open ' .. payer, whole(wallet.open + 1),
  unpack(newcomers_now and {'newcomers', newcomers_now} or {}))
redis.call('HINCRBY', SUMS, 'claimed', amount)
redis.call('HINCRBY', SUMS, 'open', amount)
redis.call('RPUSH', JOURNAL, unpack(lines))
if begins then
  queue(id, at, lane, nil, true)
  if lane == 'express' then go_ahead(EXPRESS, id, at, newcomers_now or wallet.newcomers) end
end
-- Nobody follows what has just begun.
if phase then wake() end
return {'claimed', tostring(number), count_write(at, writer), known.life, replicated, begins and '1' or ''}
