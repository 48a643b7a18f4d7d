-- A local function's tool call needs approval: creates its step and blocks the execution.
--
-- keys
--   log record steps by_state.running by_state.blocked leases step_deadlines
-- args
--   id
--   fence
--   key
--   step
--   tool
--   digest       of the arguments
--   attempts     at most
--   timeout      us
--   created      payload of step.created up to where the deadline belongs
--   required     payload of step.approval_required
--   blocked      payload of execution.blocked
--   runner       '1' for a runner
--   arguments    as stored
--   most_events
--   most_bytes
-- answers
--   blocked
--   known    the step was made before
--   full
--   lost
local at = now()
if not holds(fence, at) then return 'lost' end
if redis.call('HEXISTS', STEPS, 'key ' .. key) == 1 then return 'known' end
if not fits(3, #created + #required + #blocked, most_events, most_bytes) then return 'full' end
redis.call('HSET', STEPS, 'key ' .. key, step, step .. ' tool', tool, step .. ' digest', digest,
  step .. ' status', 'pending', step .. ' attempt', '1', step .. ' attempts', attempts, step .. ' fence', fence,
  step .. ' created', whole(at), step .. ' timeout', timeout, step .. ' kept', 'kept ' .. key)
if runner == '1' then redis.call('HSET', STEPS, step .. ' remote', '1', step .. ' args', arguments) end
redis.call('HINCRBY', STEPS, 'count', 1)
open_step(step)
local first = emit(at, 'step.created', created .. '"' .. iso(at + tonumber(timeout)) .. '"}', step)
local asked = emit(at, 'step.approval_required', required, step, first, first)
stand_still(id, at, 'approval', step, blocked, asked)
wake()
return 'blocked'
