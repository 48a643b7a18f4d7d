-- Grants the lease on a pending execution: a new fence, and one attempt used. Does not start work that could no
-- longer be settled.
--
-- keys
--   log record by_state.pending by_state.running hooked leases queued stats
-- hook keys
--   deadlines journal money open_payments sums wallets
-- args
--   id
--   lease    us
--   worker   who takes it
--   session
-- answers
--   taken  time, field, value, ...
--   gone
local lease = tonumber(lease)
local state, phase, due, ends_by, limit, sla_by, lane, fence, attempt, started, created, hooks =
  unpack(get('state', 'phase', 'due', 'ends_by', 'run_limit', 'sla_by', 'lane', 'fence', 'attempt', 'first_started',
    'created', 'hooks'))
local at = now()
if state ~= 'pending' then
  redis.call('ZREM', QUEUED, id)
  return {'gone'}
end
ends_by = math.min(tonumber(ends_by), tonumber(sla_by or ends_by))
if phase ~= 'working' or tonumber(due or 0) > at or ends_by <= at then return {'gone'} end
if not money_may_begin(id, at) then
  redis.call('ZREM', QUEUED, id)
  return {'gone'}
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
local record = redis.call('HGETALL', RECORD)
return {'taken', whole(at), unpack(record)}
