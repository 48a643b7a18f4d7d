-- Accepts a remote agent's tool call: creates its step, and either allows it or requests approval first.
--
-- keys
--   log record steps jobs(tool) by_state.running by_state.blocked epochs leases stats step_deadlines
-- args
--   id
--   session
--   caller       or ''
--   key          idempotency key or ''
--   digest       of the intent
--   step
--   tool
--   decision     'allow' or 'ask'
--   runner       '1' for a runner
--   attempts     at most
--   timeout      us
--   accepted     payload of intent.accepted
--   created      payload of step.created up to where the deadline belongs
--   job
--   arguments    as stored
--   required     payload of step.approval_required
--   blocked      payload of execution.blocked
--   response
--   asking       response while approval is pending
--   approval     name under which an approval of the same call is stored
--   most_events
--   most_bytes
-- answers
--   new       response, '1' when a runner is needed
--   again     response
--   denied    reason
--   mismatch
--   full
--   unknown
--   foreign
--   expired
--   terminal  state
--   sealed
--   blocked   what for
local remote = runner == '1'
local at = now()
local no, _, log_bytes = refusal(session, caller, at, 'log_bytes')
local before = answered(no, key, digest)
if before then return before end
if not goes_on(no) then return no end
local made, open, steps = unpack(redis.call('HMGET', STEPS, step .. ' status', 'open', 'count'))
if made then return {'new', response, ''} end
-- Do not ask again about a call that was denied while no agent was connected.
local denied = decision == 'ask' and redis.call('HGET', STEPS, 'denied ' .. approval)
local deadline = at + tonumber(timeout)
-- Do not ask again about a call that was approved while no agent was connected.
local granted = decision == 'ask' and tonumber(redis.call('HGET', STEPS, approval) or 0) > 0
local asks = decision == 'ask' and not granted
local bytes = #created + (asks and #required + #blocked or #accepted)
local size, length = room(log_bytes, 3, bytes, most_events, most_bytes)
if denied then
  redis.call('HDEL', STEPS, 'denied ' .. approval)
  return {'denied', denied}
end
if not size then return {'full'} end
redis.call('HSET', RECORD, 'log_bytes', size)
if granted then redis.call('HINCRBY', STEPS, approval, -1) end
local facts = {}
if remote then facts = {step .. ' remote', '1'} end
-- Short arguments of a tool that the agent runs itself are included in step.created.
if remote or string.sub(arguments, 1, 1) == '@' then
  facts[#facts + 1], facts[#facts + 2] = step .. ' args', arguments
end
redis.call('HSET', STEPS, step .. ' tool', tool, step .. ' status', 'pending', step .. ' attempt', '1',
  step .. ' attempts', attempts, step .. ' created', whole(at), step .. ' kept', approval,
  step .. ' timeout', timeout, 'count', whole((steps or 0) + 1), 'open', (open or '') .. ' ' .. step, unpack(facts))
local created = created .. '"' .. iso(deadline) .. '"}'
if asks then
  answer(key, digest, asking)
  local first = emit(at, 'step.created', created, step)
  local asked = emit(at, 'step.approval_required', required, step, first, first)
  block(id, at, 'approval', step, blocked, asked)
  count_intent('invoke_tool', 'pending_approval')
  wake()
  return {'new', asking, ''}
end
answer(key, digest, response)
local intent = length + 1
local first = emit_after(event(at, 'intent.accepted', accepted), at, 'step.created', created, step, intent, intent)
due_by(id, step, deadline)
if remote then
  add_job(id, step, job, JOBS, at)
  local payload = '{"runner_id":"","job_id":' .. quoted(job) .. ',"deadline":"' .. iso(deadline) .. '"}'
  emit(at, 'step.dispatched', payload, step, first, intent)
end
count_intent('invoke_tool', 'accepted')
wake()
return {'new', response, remote and '1' or ''}
