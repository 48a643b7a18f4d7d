-- Accepts a tool call of a remote agent: begins its step, and either lets it go on or asks somebody first.
-- KEYS   transition(id), epochs, jobs of the tool
-- ARGV   1 id, 2 session, 3 idempotency key or '', 4 digest of the intent, 5 step, 6 tool, 7 'allow' or 'ask',
--        8 '1' for a runner, 9 most attempts, 10 time-out (us), 11 payload of intent.accepted, 12 payload of
--        step.created up to where the deadline belongs, 13 job, 14 arguments as stored, 15 payload of
--        step.approval_required, 16 payload of execution.blocked, 17 response, 18 response while somebody is asked,
--        19 what an approval of the same call is kept under, 20 most events, 21 most bytes
-- Result {'new', response, '1' when a runner is wanted}, {'again', response}, {'denied', reason}, {'mismatch'}, {'full'}
--        or a refusal
local id, session, step, tool, remote = ARGV[1], ARGV[2], ARGV[5], ARGV[6], ARGV[8] == '1'
typed('ZCARD', KEYS[25], KEYS[26])
local at = now()
local before = answered(ARGV[3], ARGV[4])
if before then return before end
local no = refusal(session, '', KEYS[25], at)
if no then return no end
if redis.call('HEXISTS', STEPS, step .. ' status') == 1 then return {'new', ARGV[17], ''} end
-- What was denied while no agent was there to hear it is not asked again.
local denied = ARGV[7] == 'ask' and redis.call('HGET', STEPS, 'denied ' .. ARGV[19])
if denied then
  redis.call('HDEL', STEPS, 'denied ' .. ARGV[19])
  return {'denied', denied}
end
if not fits(4, #ARGV[11] + #ARGV[12] + #ARGV[15] + #ARGV[16], ARGV[20], ARGV[21]) then return {'full'} end
local deadline, asks, attempts = at + tonumber(ARGV[10]), ARGV[7] == 'ask', ARGV[9]
-- What was approved while no agent was there to do it is not asked again.
if asks and tonumber(redis.call('HGET', STEPS, ARGV[19]) or 0) > 0 then
  redis.call('HINCRBY', STEPS, ARGV[19], -1)
  asks = false
end
redis.call('HSET', STEPS, step .. ' tool', tool, step .. ' status', 'pending', step .. ' attempt', '1',
  step .. ' attempts', attempts, step .. ' created', whole(at), step .. ' kept', ARGV[19],
  step .. ' timeout', ARGV[10])
if remote then redis.call('HSET', STEPS, step .. ' remote', '1', step .. ' args', ARGV[14]) end
redis.call('HINCRBY', STEPS, 'count', 1)
open_step(step)
local created = ARGV[12] .. '"' .. iso(deadline) .. '"}'
if asks then
  answer(ARGV[3], ARGV[4], ARGV[18])
  local first = emit(at, 'step.created', created, step)
  local asked = emit(at, 'step.approval_required', ARGV[15], step, first, first)
  block(id, at, 'approval', step, ARGV[16], asked)
  count_intent('invoke_tool', 'pending_approval')
  wake()
  return {'new', ARGV[18], ''}
end
answer(ARGV[3], ARGV[4], ARGV[17])
local intent = emit(at, 'intent.accepted', ARGV[11])
local first = emit(at, 'step.created', created, step, intent, intent)
due_by(id, step, deadline)
if remote then
  add_job(id, step, ARGV[13], KEYS[26], at)
  local payload = '{"runner_id":"","job_id":"' .. ARGV[13] .. '","deadline":"' .. iso(deadline) .. '"}'
  emit(at, 'step.dispatched', payload, step, first, intent)
end
count_intent('invoke_tool', 'accepted')
wake()
return {'new', ARGV[17], remote and '1' or ''}
