-- Shared by every script about an execution. Contains no payment logic: where payments matter, it calls a hook,
-- a function whose name begins with money_, defined by the payments' own file (payments/lua/_hooks.lua).

local TERMINAL = {completed = true, failed = true, cancelled = true}

local function get(...) return redis.call('HMGET', RECORD, ...) end

-- Whether this fence may still write about the work: its lease is valid and nothing is sealed.
local function holds(fence, at)
  local state, held, until_, sealed_by = unpack(get('state', 'fence', 'lease', 'sealed_by'))
  return state == 'running' and held == fence and tonumber(until_) >= at and not sealed_by
end

-- The size of the log in bytes with these events, or nil if that would exceed a limit; and its length without them.
-- `before`: its size without them, as stored.
local function room(before, events, bytes, most_events, most_bytes)
  local size, length = (before or 0) + bytes, redis.call('LLEN', LOG)
  if length + events > tonumber(most_events) or size > tonumber(most_bytes) then return nil, length end
  return whole(size), length
end

-- Reserves log space for these events and bytes; false if that would exceed a limit.
local function fits(events, bytes, most_events, most_bytes)
  local size = room(redis.call('HGET', RECORD, 'log_bytes'), events, bytes, most_events, most_bytes)
  if not size then return false end
  redis.call('HSET', RECORD, 'log_bytes', size)
  return true
end

-- Formats microseconds as RFC 3339 (days to civil date by the proleptic Gregorian calendar).
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

-- Encodes plain text as a JSON string.
local function quoted(text)
  return '"' .. string.gsub(text, '[%c"\\]', function(c) return string.format('\\u%04x', string.byte(c)) end) .. '"'
end

-- An event as it stands in the log. cause and correlation are sequences in the same log.
local function event(at, kind, payload, step, cause, correlation)
  return table.concat({whole(at), kind, step or '-', cause and whole(cause) or '0',
    correlation and whole(correlation) or '0', payload}, ' ')
end

-- Appends an event; returns its sequence.
local function emit(...) return redis.call('RPUSH', LOG, event(...)) end

-- The same, after another one, made by event(), if there is one.
local function emit_after(other, ...)
  if not other then return emit(...) end
  return redis.call('RPUSH', LOG, other, event(...))
end

local function wake() redis.call('PUBLISH', LOG, '') end

-- Tells requests that wait for the execution what they must do: 'settle' it, or 'look' at its record. They are woken
-- by nothing else. The process that claimed it has a channel for all its requests: the record's `asker`. `lease`: what
-- it must know of a settlement lease that it has been granted.
local function tell_both(what, id, ASKER, lease)
  redis.call('PUBLISH', RECORD, what)
  if ASKER then redis.call('PUBLISH', ASKER, id .. ' ' .. what .. (lease and ' ' .. lease or '')) end
end

local function tell(what) tell_both(what, unpack(get('id', 'asker'))) end

local function count(name, label, value)
  redis.call('HINCRBY', STATS, name .. '{' .. label .. '="' .. value .. '"}', 1)
end

-- Counts a time (us) in a histogram of /metrics, by what it was spent on. Further arguments are fields of STATS with a
-- moving average of such times, in which the latest weighs a fifth.
local LATENCIES = {5e3, 25e3, 1e5, 25e4, 5e5, 1e6, 25e5, 5e6, 1e7, 3e7, 6e7, 3e8, 18e8}

local function observe(name, of, took, limits, ...)
  took = math.max(0, took)
  local fields = {...}
  local means, sums = #fields, {}
  fields[means + 1], fields[means + 2] = name .. ' count ' .. of, name .. ' us ' .. of
  for _, limit in ipairs(limits or LATENCIES) do
    if took <= limit then
      fields[means + 3] = name .. ' le ' .. whole(limit) .. ' ' .. of
      break
    end
  end
  for i, before in ipairs(redis.call('HMGET', STATS, unpack(fields))) do
    local sum = (before or 0) + (i == means + 2 and took or 1)
    if i <= means then sum = before and before * 0.8 + took * 0.2 or took end
    sums[2 * i - 1], sums[2 * i] = fields[i], whole(sum)
  end
  redis.call('HSET', STATS, unpack(sums))
end

-- The load of a lane, as load.lua returns it. WAITS and TAKERS are the lane's.
local function lane_load(at, agent, lane, silence)
  local kind = redis.call('TYPE', WAITS).ok
  local waiting = kind == 'list' and redis.call('LLEN', WAITS) or kind == 'zset' and redis.call('ZCARD', WAITS) or 0
  local last = redis.call('ZREVRANGE', TICKS, 0, 0, 'WITHSCORES')[2]
  local mean, lane_mean = unpack(redis.call('HMGET', STATS, 'mean_us ' .. agent, 'lane_us ' .. lane))
  local verifying = redis.call('ZCOUNT', VERIFYING, whole(at - 30e6), '+inf')
  local takers = redis.call('ZCOUNT', TAKERS, whole(at - tonumber(silence)), '+inf')
  return {whole(at), waiting, takers, mean or '0', last and whole(at - tonumber(last)) or '-1',
    redis.call('ZCARD', LEASES), verifying, lane_mean or '0'}
end

-- Moves an execution that was created then to another state; further arguments are stored with it in its record.
local function move_from(created, id, from, to, at, ...)
  redis.call('ZREM', BY_STATE[from], id)
  redis.call('ZADD', BY_STATE[to], created, id)
  redis.call('HSET', RECORD, 'state', to, 'updated', whole(at), ...)
end

local function move(id, from, to, at) move_from(redis.call('HGET', RECORD, 'created'), id, from, to, at) end

-- Steps without an outcome, oldest first.
local function open_steps()
  local steps = {}
  for step in string.gmatch(redis.call('HGET', STEPS, 'open') or '', '%S+') do steps[#steps + 1] = step end
  return steps
end

-- Records a step's outcome and removes its deadline. `open`: the steps without an outcome as stored, if they have been
-- read; further arguments are stored with it in STEPS.
local function close_step(id, step, status, open, ...)
  local left = {}
  for other in string.gmatch(open or redis.call('HGET', STEPS, 'open') or '', '%S+') do
    if other ~= step then left[#left + 1] = other end
  end
  redis.call('HSET', STEPS, step .. ' status', status, 'open', table.concat(left, ' '), ...)
  redis.call('ZREM', STEP_DEADLINES, id .. ' ' .. step)
end

-- Cancels every step without an outcome when the execution ends.
local function cancel_steps(id, at, reason, correlation)
  local open = open_steps()
  if #open == 0 then return end
  -- The remote agent is notified of these steps later.
  redis.call('HSET', STEPS, 'cut', table.concat(open, ' ') .. ' ' .. (redis.call('HGET', STEPS, 'cut') or ''))
  for i, step in ipairs(open) do
    close_step(id, step, 'cancelled', table.concat(open, ' ', i))
    emit(at, 'step.cancelled', '{"reason":' .. quoted(reason) .. '}', step, 0, correlation)
  end
end

-- What `finish` must know of an execution; a caller that has read it already passes it on.
local function ending()
  local lane, contract, created, asker = unpack(get('lane', 'contract', 'created', 'asker'))
  return {lane = lane, contract = contract, created = created, asker = asker}
end

-- Ends an execution; the terminal event is the last in its log, whose length is returned. `why` names a refund
-- condition. `of` may have more than ending() reads: `sealed`; `told`, when its remote agent knows of the end, and
-- `asker_knows`, when the process that claimed it does; `jobs`, whether STEPS has that field, 1 or 0; `money`, what
-- money_known() has returned; `event`, which precedes the last one. Further arguments are stored in RECORD.
local function finish(id, at, from, to, payload, correlation, why, of, ...)
  of = of or ending()
  -- Only running work has a lease, until it is sealed, and only pending work is queued.
  if from == 'running' and not of.sealed then redis.call('ZREM', LEASES, id) end
  if from == 'pending' then redis.call('ZREM', QUEUED, id) end
  -- If work remains after the end (an agent to notify, jobs to take back), a timer triggers it.
  if (of.jobs or redis.call('HEXISTS', STEPS, 'jobs')) == 1 or (of.lane == 'remote' and not of.told) then
    redis.call('ZADD', TIMERS, whole(at), id)
  else
    redis.call('ZREM', TIMERS, id)
  end
  redis.call('ZREM', DEADLINES, id)
  redis.call('ZADD', ENDED, whole(at), id)
  money_ended(id, at, to, why or 'no_response', of.money or money_known())
  move_from(of.created, id, from, to, at, 'phase', 'done', 'ended', whole(at), 'lease', '0', ...)
  local length = emit_after(of.event, at, 'execution.' .. to, payload, nil, correlation, correlation)
  count('worker_executions_total', 'status', to)
  wake()
  tell_both('look', id, not of.asker_knows and of.asker)
  if to == 'completed' and of.contract then
    -- Bought work is kept long, and nothing runs it again. A remote agent may still ask under its session.
    local dropped = {'asker', 'terminal', 'context', 'run_limit', 'run_until', 'settle_margin', 'due', 'latency',
      'sla_by', 'log_bytes', 'write', 'error', 'lease'}
    if of.lane ~= 'remote' then dropped[#dropped + 1] = 'session' end
    redis.call('HDEL', RECORD, unpack(dropped))
  elseif of.asker then
    redis.call('HDEL', RECORD, 'asker')
  end
  return length
end

-- Seals finished work. Without a payment to settle it is unsealed at once; else only money decides from here on. `of`:
-- what `finish` must know, and agent, start and version of the work.
local function seal_work(id, at, by, outcome, work, correlation, grace, of)
  of.money = money_known()
  local completed = outcome == 'completed'
  local lease = completed and money_leased(at, of.asker, of.money)
  cancel_steps(id, at, 'execution ended', correlation)
  -- Names that we do not offer are not measured.
  if of.contract or of.version then
    observe('run', of.agent, at - tonumber(of.started), nil, 'mean_us ' .. of.agent, 'lane_us ' .. of.lane)
  end
  local sealed = {'sealed_by', by, 'output', work.output, 'result', work.result, 'error', work.error}
  local settles, told
  if completed then settles, told = money_settles(id, at, grace, of.money, lease) end
  if settles then
    redis.call('HSET', RECORD, 'phase', 'settling', 'terminal', work.payload, 'lease', '0', 'updated', whole(at),
      'sealed', whole(at), unpack(sealed))
    redis.call('ZREM', LEASES, id)
    redis.call('ZREM', DEADLINES, id)
    emit_after(of.event, at, 'execution.sealed', '{}')
    wake()
    tell_both('settle', id, of.asker, told)
    return 'settling'
  end
  finish(id, at, 'running', outcome, work.payload, correlation, work.condition, of, unpack(sealed))
  return 'ok'
end

-- Queues a pending execution. The caller pushes work on the queue lane to RQ. Work for a remote agent is put into
-- the agent's queue by the first process that handles its timer, at the latest by the clock. `new`: it has not waited
-- before, so it has no timer, and the lane, which may be long, need not be searched for it.
local function queue(id, at, lane, first, new)
  if lane == 'remote' then
    redis.call('ZADD', TIMERS, whole(at), id)
    return
  end
  if not new then redis.call('ZREM', TIMERS, id) end
  redis.call('ZADD', QUEUED, whole(at), id)
  if lane == 'express' and (new or not redis.call('LPOS', EXPRESS, id)) then
    redis.call(first and 'LPUSH' or 'RPUSH', EXPRESS, id)
  end
end

-- Restarts a blocked local execution from its first line, with a new fence but no new attempt. Its streamed output
-- is reset.
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

-- What `grant` must know of the record and its money.
local function waiting_work()
  return get('state', 'phase', 'due', 'ends_by', 'run_limit', 'sla_by', 'lane', 'fence', 'attempt', 'first_started',
    'created', 'hooks', 'settle_margin'), money_before()
end

-- Grants the lease on a pending execution: a new fence, and one attempt used. Does not start work that could no
-- longer be settled. Returns time, field, value, ...; nil if it may not begin.
local function grant(id, lease, worker, session, record, money)
  local state, phase, due, latest, limit, sla_by, lane, fence, attempt, started, created, hooks, margin = unpack(record)
  local at = now()
  if state ~= 'pending' then
    redis.call('ZREM', QUEUED, id)
    return
  end
  local ends_by = math.min(tonumber(latest), tonumber(sla_by or latest))
  if phase ~= 'working' or tonumber(due or 0) > at or ends_by <= at then return end
  if not money_may_begin(id, at, money, limit, sla_by, margin, latest) then
    redis.call('ZREM', QUEUED, id)
    return
  end
  local run_until = math.min(at + tonumber(limit), ends_by)
  local until_ = math.min(at + lease, run_until)
  move_from(created, id, 'pending', 'running', at, 'fence', whole(fence + 1), 'attempt', whole(attempt + 1),
    'lease', whole(until_), 'started', whole(at), 'first_started', started or whole(at), 'run_until', whole(run_until),
    'worker', worker, 'session', session)
  if (hooks or '') ~= '' then redis.call('ZADD', HOOKED, whole(at), id) end
  observe('wait', lane, at - tonumber(redis.call('ZSCORE', QUEUED, id) or at))
  redis.call('ZREM', QUEUED, id)
  redis.call('ZADD', LEASES, whole(until_), id)
  emit(at, 'execution.started', '{"session_id":' .. quoted(session) .. ',"consumer_id":' .. quoted(worker) .. '}')
  wake()
  return {whole(at), unpack(redis.call('HGETALL', RECORD))}
end
