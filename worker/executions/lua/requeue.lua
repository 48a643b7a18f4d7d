-- Takes a running execution from whoever holds it and lets it run again, or ends it when its tries are used up.
-- KEYS   transition(id)
-- ARGV   id, fence ('' when the clock asks: only a lapsed lease is taken), reason, delay in us,
--        payload of execution.failed for tries used up, the same for overtime, and for overtime that breaks a
--        latency promise or a contract's deadline ('' where nobody promised)
-- Result {'queued', lane}, {'later'}, {'failed'} or {'gone'}
local id, fence, reason, delay = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local state, held, until_, lane, attempt, attempts, run_until, session, sealed_by, ends_by, sla_by, contract =
  unpack(get('state', 'fence', 'lease', 'lane', 'attempt', 'attempts', 'run_until', 'session', 'sealed_by',
    'ends_by', 'sla_by', 'contract'))
local at = now()
if state ~= 'running' or sealed_by then
  redis.call('ZREM', LEASES, id)
  return {'gone'}
end
if (fence ~= '' and held ~= fence) or (fence == '' and tonumber(until_) >= at) then return {'gone'} end
-- Where a remote agent's time ends with the execution's own, expire.lua ends it, in the words for that.
if fence == '' and lane == 'remote' and tonumber(ends_by) <= at then return {'gone'} end
local lost = reason == 'lease_lapsed' or reason == 'process_lost'
local correlation = 0
if lost then correlation = emit(at, 'agent.timeout', '{"session_id":"' .. session .. '"}') end
local overtime = lost and tonumber(run_until) <= at
if overtime or (lost and tonumber(attempt) >= tonumber(attempts)) then
  local payload, why = overtime and ARGV[6] or ARGV[5], nil
  if overtime and contract and ARGV[8] ~= '' and tonumber(ends_by) <= at then
    payload, why = ARGV[8], 'deadline_missed'
  elseif overtime and ARGV[7] ~= '' and tonumber(sla_by or 'inf') <= at then
    payload = ARGV[7]
  end
  redis.call('HSET', RECORD, 'error', payload)
  cancel_steps(id, at, 'agent disconnected', correlation)
  finish(id, at, 'running', 'failed', payload, correlation, why)
  return {'failed'}
end
if reason == 'handed_back' then redis.call('HINCRBY', RECORD, 'attempt', -1) end
-- Nobody works on an open step until the next run begins it again, so its time does not run either.
for _, step in ipairs(open_steps()) do redis.call('ZREM', STEP_DEADLINES, id .. ' ' .. step) end
redis.call('ZREM', LEASES, id)
redis.call('HSET', RECORD, 'lease', '0', 'due', whole(at + delay))
move(id, 'running', 'pending', at)
emit(at, 'execution.reset', '{"reason":"' .. reason .. '","from_status":"running"}', nil, correlation, correlation)
count('worker_resets_total', 'reason', reason)
if delay > 0 then
  redis.call('ZADD', TIMERS, whole(at + delay), id)
  wake()
  return {'later'}
end
queue(id, at, lane, true)
wake()
return {'queued', lane}
