-- Fails an execution because one of its steps passed its deadline.
--
-- keys
--   log record steps by_state deadlines ended leases queued stats step_deadlines timers
-- hook keys
--   journal legs money open_payments sums wallets
-- args
--   id
--   step
--   payload  of execution.failed
-- answers
--   failed
--   gone
local member = id .. ' ' .. step
local at = now()
local due = redis.call('ZSCORE', STEP_DEADLINES, member)
if not due or tonumber(due) > at then return 'gone' end
local state, sealed_by = unpack(get('state', 'sealed_by'))
-- No step is late while the execution waits for a reply.
if state == 'blocked' then
  redis.call('ZADD', STEP_DEADLINES, whole(at + 1e6), member)
  return 'gone'
end
if state ~= 'running' or sealed_by or redis.call('HGET', STEPS, step .. ' status') ~= 'pending' then
  redis.call('ZREM', STEP_DEADLINES, member)
  return 'gone'
end
close_step(id, step, 'timed_out')
redis.call('HSET', STEPS, 'cut', step .. ' ' .. (redis.call('HGET', STEPS, 'cut') or ''))
local timed_out = emit(at, 'step.timed_out', '{}', step)
cancel_steps(id, at, 'sibling step timed out', timed_out)
redis.call('HSET', RECORD, 'error', payload)
finish(id, at, state, 'failed', payload, timed_out)
return 'failed'
