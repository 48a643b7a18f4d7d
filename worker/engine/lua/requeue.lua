-- Takes a running execution from its holder and queues it again, or ends it when its attempts are used up.
--
-- keys
--   log record steps by_state deadlines ended express leases queued stats step_deadlines timers
-- hook keys
--   journal legs money open_payments sums wallets
-- args
--   id
--   fence      '' from the clock: only an expired lease is taken
--   reason
--   delay      us
--   crashed    payload of execution.failed for used-up attempts
--   timed_out  the same for overtime
--   latency    for overtime that breaks a latency promise
--   deadline   for overtime that breaks a contract's deadline, or ''
-- answers
--   queued  lane
--   later
--   failed
--   gone
local delay = tonumber(delay)
local state, held, until_, lane, attempt, attempts, run_until, session, sealed_by, ends_by, sla_by, contract, started,
  first = unpack(get('state', 'fence', 'lease', 'lane', 'attempt', 'attempts', 'run_until', 'session', 'sealed_by',
    'ends_by', 'sla_by', 'contract', 'started', 'first_started'))
local at = now()
if state ~= 'running' or sealed_by then
  redis.call('ZREM', LEASES, id)
  return {'gone'}
end
if (fence ~= '' and held ~= fence) or (fence == '' and tonumber(until_) >= at) then return {'gone'} end
-- Where a remote agent's time ends with the execution's own, expire.lua ends it, with its own error.
if fence == '' and lane == 'remote' and tonumber(ends_by) <= at then return {'gone'} end
local lost = reason == 'lease_lapsed' or reason == 'process_lost'
local correlation = 0
if lost then correlation = emit(at, 'agent.timeout', '{"session_id":' .. quoted(session) .. '}') end
local overtime = lost and tonumber(run_until) <= at
if overtime or (lost and tonumber(attempt) >= tonumber(attempts)) then
  local payload, why = overtime and timed_out or crashed, nil
  if overtime and contract and deadline ~= '' and tonumber(ends_by) <= at then
    payload, why = deadline, 'deadline_missed'
  elseif overtime and latency ~= '' and tonumber(sla_by or 'inf') <= at then
    payload = latency
  end
  redis.call('HSET', RECORD, 'error', payload)
  cancel_steps(id, at, 'agent disconnected', correlation)
  finish(id, at, 'running', 'failed', payload, correlation, why)
  return {'failed'}
end
if reason == 'handed_back' or reason == 'not_begun' then redis.call('HINCRBY', RECORD, 'attempt', -1) end
-- Its seeker may still cancel it without losing the payment.
if reason == 'not_begun' and first == started then redis.call('HDEL', RECORD, 'first_started') end
-- An open step does not progress until the next run begins it again, so its deadline is suspended.
for _, step in ipairs(open_steps()) do redis.call('ZREM', STEP_DEADLINES, id .. ' ' .. step) end
redis.call('ZREM', LEASES, id)
redis.call('HSET', RECORD, 'lease', '0', 'due', whole(at + delay))
move(id, 'running', 'pending', at)
emit(at, 'execution.reset', '{"reason":' .. quoted(reason) .. ',"from_status":"running"}', nil, correlation, correlation)
count('worker_resets_total', 'reason', reason)
if delay > 0 then
  redis.call('ZADD', TIMERS, whole(at + delay), id)
  wake()
  return {'later'}
end
queue(id, at, lane, true)
wake()
return {'queued', lane}
