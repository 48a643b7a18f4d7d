-- Records that a runner has begun a step.
--
-- keys
--   log record steps
-- args
--   step
--   payload  of step.started
--   caller   the only runner that the caller may speak for, or ''
-- answers
--   ok
--   step     unknown
--   foreign
local status, stage, runner = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' stage', step .. ' runner'))
if not status then return 'step' end
if caller ~= '' and runner ~= caller then return 'foreign' end
-- A step that awaits approval has not begun.
if status ~= 'pending' or stage == 'running' or awaited(step) then return 'ok' end
redis.call('HSET', STEPS, step .. ' stage', 'running')
emit(now(), 'step.started', payload, step)
wake()
return 'ok'
