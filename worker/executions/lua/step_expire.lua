-- A step passed its deadline: it takes the execution with it.
-- KEYS   transition(id)
-- ARGV   id, step, payload of execution.failed
-- Result 'failed' or 'gone'
local id, step = ARGV[1], ARGV[2]
local member = id .. ' ' .. step
local at = now()
local due = redis.call('ZSCORE', STEP_DEADLINES, member)
if not due or tonumber(due) > at then return 'gone' end
local state, sealed_by = unpack(get('state', 'sealed_by'))
-- While somebody is waited for, nobody can be late.
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
redis.call('HSET', RECORD, 'error', ARGV[3])
finish(id, at, state, 'failed', ARGV[3], timed_out)
return 'failed'
