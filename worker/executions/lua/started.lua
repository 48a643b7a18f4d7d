-- A runner has begun with a step.
-- KEYS   transition(id)
-- ARGV   step, payload of step.started, only runner that the caller may speak for, or ''
-- Result 'ok', 'step' (unknown) or 'foreign'
local step = ARGV[1]
local status, stage, runner = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' stage', step .. ' runner'))
if not status then return 'step' end
if ARGV[3] ~= '' and runner ~= ARGV[3] then return 'foreign' end
-- A step that somebody has to approve has not begun.
if status ~= 'pending' or stage == 'running' or redis.call('HGET', RECORD, 'ref') == step then return 'ok' end
redis.call('HSET', STEPS, step .. ' stage', 'running')
emit(now(), 'step.started', ARGV[2], step)
wake()
return 'ok'
