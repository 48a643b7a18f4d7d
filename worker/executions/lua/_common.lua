-- Put in front of every script that moves an execution.
-- KEYS[1..24] are Keys.transition(id): the execution's own five, then what all executions share.
local RECORD, LOG, STEPS, MONEY, LEDGER = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LEASES, QUEUED, TIMERS, DEADLINES, ENDED = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local STEP_DEADLINES, STATS, EXPRESS = KEYS[11], KEYS[12], KEYS[13]
local OPEN, LEGS, JOURNAL, SUMS, WALLETS = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local BY_STATE = {
  pending = KEYS[19], running = KEYS[20], blocked = KEYS[21],
  completed = KEYS[22], failed = KEYS[23], cancelled = KEYS[24],
}
local TERMINAL = {completed = true, failed = true, cancelled = true}

-- The store does not roll back. A key of a wrong type stops a transition here, before its first write.
if BY_STATE.cancelled then
  for _, key in ipairs({LEASES, QUEUED, TIMERS, DEADLINES, ENDED, STEP_DEADLINES, OPEN, LEGS}) do
    redis.call('ZCARD', key)
  end
  for _, key in pairs(BY_STATE) do redis.call('ZCARD', key) end
  for _, key in ipairs({RECORD, STEPS, MONEY, STATS, SUMS, WALLETS}) do redis.call('HLEN', key) end
  for _, key in ipairs({LOG, LEDGER, EXPRESS, JOURNAL}) do redis.call('LLEN', key) end
end

local function whole(n) return string.format('%.0f', n) end

local function get(...) return redis.call('HMGET', RECORD, ...) end

-- Whether this fence may still write about the work: its lease holds, and nothing is sealed.
local function holds(fence, at)
  local state, held, until_, sealed_by = unpack(get('state', 'fence', 'lease', 'sealed_by'))
  return state == 'running' and held == fence and tonumber(until_) >= at and not sealed_by
end

-- Books so many more bytes of log, unless they or their events would be too many.
local function fits(events, bytes, most_events, most_bytes)
  local size = tonumber(redis.call('HGET', RECORD, 'log_bytes') or 0) + bytes
  if redis.call('LLEN', LOG) + events > tonumber(most_events) or size > tonumber(most_bytes) then return false end
  redis.call('HSET', RECORD, 'log_bytes', whole(size))
  return true
end

-- RFC 3339 of a time in microseconds (days to civil date by the proleptic Gregorian calendar).
local function iso(at)
  local seconds = math.floor(at / 1e6)
  local days = math.floor(seconds / 86400)
  local rest = seconds - days * 86400
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, doy - math.floor((153 * mp + 2) / 5) + 1,
    math.floor(rest / 3600), math.floor(rest % 3600 / 60), rest % 60, at % 1e6)
end

-- Appends a fact; returns its sequence. cause and correlation are sequences in the same log.
local function emit(at, kind, payload, step, cause, correlation)
  return redis.call('RPUSH', LOG, table.concat(
    {whole(at), kind, step or '-', whole(cause or 0), whole(correlation or 0), payload}, ' '))
end

local function wake() redis.call('PUBLISH', LOG, '') end

local function count(name, label, value)
  redis.call('HINCRBY', STATS, name .. '{' .. label .. '="' .. value .. '"}', 1)
end

local function move(id, from, to, at)
  local created = redis.call('ZSCORE', BY_STATE[from], id) or redis.call('HGET', RECORD, 'created')
  redis.call('ZREM', BY_STATE[from], id)
  redis.call('ZADD', BY_STATE[to], created, id)
  redis.call('HSET', RECORD, 'state', to, 'updated', whole(at))
end

-- The steps that have no outcome yet, oldest first.
local function open_steps()
  local steps = {}
  for step in string.gmatch(redis.call('HGET', STEPS, 'open') or '', '%S+') do steps[#steps + 1] = step end
  return steps
end

-- Gives a step its outcome; from then on it has no deadline.
local function close_step(id, step, status)
  local open = {}
  for _, other in ipairs(open_steps()) do
    if other ~= step then open[#open + 1] = other end
  end
  redis.call('HSET', STEPS, step .. ' status', status, 'open', table.concat(open, ' '))
  redis.call('ZREM', STEP_DEADLINES, id .. ' ' .. step)
end

-- Every step without an outcome ends with the execution.
local function cancel_steps(id, at, reason, correlation)
  local open = open_steps()
  if #open == 0 then return end
  -- What was cut off is told to a remote agent afterwards.
  redis.call('HSET', STEPS, 'cut', table.concat(open, ' ') .. ' ' .. (redis.call('HGET', STEPS, 'cut') or ''))
  for _, step in ipairs(open) do
    close_step(id, step, 'cancelled')
    emit(at, 'step.cancelled', '{"reason":"' .. reason .. '"}', step, 0, correlation)
  end
end

-- Money. An execution's payments are numbered; `current` is the one that counts now. Each is open until it is
-- settled, refused or released, and every change is booked in the execution's ledger and in the journal over all.

local function paid_with(number, ...)
  local names = {...}
  for i, name in ipairs(names) do names[i] = number .. ' ' .. name end
  return unpack(redis.call('HMGET', MONEY, unpack(names)))
end

local function book(id, at, fact, number, amount, detail)
  local line = table.concat({whole(at), fact, id, number, amount, detail or '-'}, ' ')
  redis.call('RPUSH', LEDGER, line)
  redis.call('RPUSH', JOURNAL, line)
end

-- Moves a payment to another state; the sums by state always add up to what was ever claimed.
local function turn(id, at, number, to, detail)
  local from, amount, payer, hooks = paid_with(number, 'state', 'amount', 'payer', 'hooks')
  if from == to then return end
  local ended = {settled = true, refused = true, released = true}
  if hooks then
    -- Whoever pays says who is told of the end, as long as no work was begun for somebody else.
    local state, started = unpack(get('state', 'first_started'))
    local accepted = to ~= 'refused' and to ~= 'released'
    if accepted and state and not started then redis.call('HSET', RECORD, 'hooks', hooks) end
    redis.call('HDEL', MONEY, number .. ' hooks')
  end
  redis.call('HSET', MONEY, number .. ' state', to)
  if from and ended[from] then
    redis.call('HINCRBY', SUMS, from, -amount)
  elseif ended[to] then
    redis.call('HINCRBY', SUMS, 'open', -amount)
    redis.call('HINCRBY', WALLETS, 'open ' .. payer, -1)
  end
  if ended[to] then redis.call('HINCRBY', SUMS, to, amount) end
  book(id, at, to, number, amount, detail)
end

-- The authorization can no longer be settled: the work waits for another payment.
local function let_go(id, at, number)
  local code = 'authorization_too_short'
  redis.call('HSET', MONEY, number .. ' code', code)
  turn(id, at, number, 'released', code)
  redis.call('ZREM', OPEN, id)
  redis.call('HSET', RECORD, 'phase', 'payment_due', 'due', '0', 'parked', '', 'updated', whole(at))
  emit(at, 'payment.refused', '{"number":' .. number .. ',"code":"' .. code .. '"}')
  wake()
end

-- Work that its seeker did not pay for: the wallet's count starts again an hour after the last time.
local UNPAID_FOR = 3600e6

local function unpaid_work(payer, at)
  local times, last = unpack(redis.call('HMGET', WALLETS, 'refused ' .. payer, 'refused_at ' .. payer))
  return at - tonumber(last or 0) < UNPAID_FOR and tonumber(times or 0) or 0
end

local function unpaid(at)
  local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
  if not number or paid then return end
  local payer = paid_with(number, 'payer')
  redis.call('HSET', WALLETS, 'refused ' .. payer, whole(unpaid_work(payer, at) + 1), 'refused_at ' .. payer, whole(at))
end

-- Money that bought nothing goes back: a leg that the clock signs and settles.
local function owe_refund(id, at, number, reason)
  local amount, owed = paid_with(number, 'amount', 'refund state')
  if owed then return end
  redis.call('HSET', MONEY, number .. ' refund state', 'due', number .. ' refund amount', amount,
    number .. ' refund reason', reason)
  redis.call('HINCRBY', SUMS, 'refunds_due', amount)
  redis.call('ZADD', LEGS, whole(at), 'refund ' .. id .. ' ' .. number)
  book(id, at, 'refund_due', number, amount, reason)
end

-- The contract's platform fee on a payment that bought its result; fees gather per wallet.
local function owe_fee(id, at, number)
  local fee, wallet = unpack(redis.call('HMGET', MONEY, 'fee', 'fee_wallet'))
  if not fee or tonumber(fee) == 0 then return end
  redis.call('HINCRBY', SUMS, 'fees_due', fee)
  redis.call('ZADD', LEGS, 'NX', whole(at), 'fee ' .. wallet)
  redis.call('HINCRBY', WALLETS, 'fee ' .. wallet, fee)
  book(id, at, 'fee_due', number, fee, wallet)
end

-- What the end of an execution means for its money.
local function close_money(id, at, to, why)
  local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
  if not number then return end
  local state = paid_with(number, 'state')
  -- A payment that may have moved is followed to its outcome whatever became of the work.
  if state ~= 'settling' and state ~= 'unknown' then redis.call('ZREM', OPEN, id) end
  if paid then
    if to == 'completed' then owe_fee(id, at, paid) elseif why ~= 'kept' then owe_refund(id, at, paid, why) end
  end
  if state == 'claimed' or state == 'verified' then turn(id, at, number, 'released', why) end
end

-- What an end leaves to do outside of this script (an agent to tell, jobs to take back) begins with its timer.
local function loose_ends(id)
  return redis.call('HGET', RECORD, 'lane') == 'remote' or redis.call('HEXISTS', STEPS, 'jobs') == 1
end

-- The one end of an execution: its terminal event is the last of its log. `why` names a refund condition.
local function finish(id, at, from, to, payload, correlation, why)
  redis.call('ZREM', LEASES, id)
  redis.call('ZREM', QUEUED, id)
  if loose_ends(id) then redis.call('ZADD', TIMERS, whole(at), id) else redis.call('ZREM', TIMERS, id) end
  redis.call('ZREM', DEADLINES, id)
  redis.call('ZADD', ENDED, whole(at), id)
  close_money(id, at, to, why or 'no_response')
  move(id, from, to, at)
  redis.call('HSET', RECORD, 'phase', 'done', 'ended', whole(at), 'lease', '0')
  emit(at, 'execution.' .. to, payload, nil, correlation, correlation)
  count('worker_executions_total', 'status', to)
  wake()
end

-- The work is over. Without money to settle it is unsealed at once; else only money decides from here on.
local function seal_work(id, at, by, outcome, work, correlation, grace)
  redis.call('HSET', RECORD, 'sealed_by', by, 'output', work.output, 'result', work.result, 'error', work.error)
  cancel_steps(id, at, 'execution ended', correlation)
  -- What this agent's work takes, the latest weighing a fifth.
  local agent, started = unpack(get('agent', 'started'))
  local mean, took = redis.call('HGET', STATS, 'mean_us ' .. agent), at - tonumber(started)
  redis.call('HSET', STATS, 'mean_us ' .. agent, whole(mean and mean * 0.8 + took * 0.2 or took))
  local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
  if outcome == 'completed' and number and not paid then
    redis.call('HSET', RECORD, 'phase', 'settling', 'terminal', work.payload, 'lease', '0', 'updated', whole(at),
      'sealed', whole(at))
    redis.call('ZREM', LEASES, id)
    redis.call('ZREM', DEADLINES, id)
    redis.call('ZADD', OPEN, whole(at + tonumber(grace)), id)
    emit(at, 'execution.sealed', '{}')
    wake()
    return 'settling'
  end
  finish(id, at, 'running', outcome, work.payload, correlation, work.condition)
  return 'ok'
end

-- Lets somebody take a pending execution. What waits on the queue lane is told to RQ by the caller; what waits for
-- a remote agent is put into that agent's line by whoever comes first, at the latest by the clock.
local function queue(id, at, lane, first)
  if lane == 'remote' then
    redis.call('ZADD', TIMERS, whole(at), id)
    return
  end
  redis.call('ZREM', TIMERS, id)
  redis.call('ZADD', QUEUED, whole(at), id)
  if lane == 'express' and not redis.call('LPOS', EXPRESS, id) then
    redis.call(first and 'LPUSH' or 'RPUSH', EXPRESS, id)
  end
end

-- A local execution that waited for somebody runs again from its first line: a new fence, but no attempt. What it
-- says is said anew.
local function run_again(id, at, lane, payload, cause)
  redis.call('HDEL', RECORD, 'blocked_on', 'ref', 'wait_key', 'wait_until', 'wait_expired')
  redis.call('HSET', RECORD, 'due', '0', 'resumed', '1')
  move(id, 'blocked', 'pending', at)
  emit(at, 'execution.resumed', payload, nil, cause, cause)
  if tonumber(redis.call('HGET', RECORD, 'said') or 0) > 0 then
    redis.call('HSET', RECORD, 'said', '0')
    emit(at, 'output.reset', '{}')
  end
  queue(id, at, lane, true)
  wake()
end
