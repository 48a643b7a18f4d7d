-- Records the result that a remote agent reports for its work.
--
-- keys
--   log record steps held(session) by_state deadlines ended epochs leases queued stats step_deadlines timers
-- hook keys
--   journal legs life money open_payments sums wallets writers
-- args
--   id
--   session
--   caller     or ''
--   key        idempotency key or ''
--   digest     of the intent
--   outcome    'completed' or 'failed'
--   output     JSON
--   result     JSON
--   problem    JSON
--   payload    of the terminal event
--   condition  refund condition
--   grace      us by which the settler of a waiting request has priority
--   accepted   payload of intent.accepted
--   response
--   checked    '1' when the output was validated against its schemas
-- answers
--   new       response
--   again     response
--   mismatch
--   steps     some are still open
--   check     the output may have a schema to validate against
--   unknown
--   foreign
--   expired
--   terminal  state
--   sealed
--   blocked   what for
local at = now()
local no, _, lane, contract, created, asker, agent, started, version = refusal(session, caller, at, 'lane', 'contract',
  'created', 'asker', 'agent', 'started', 'version')
local before = answered(no, key, digest)
if before then return before end
-- An agent that gives up while an approval is pending cancels all its steps.
local gives_up = no and outcome == 'failed' and goes_on(no)
if no and not gives_up then return no end
if not gives_up and string.find(redis.call('HGET', STEPS, 'open') or '', '%S') then return {'steps'} end
if outcome == 'completed' and checked ~= '1' and (contract or version) then return {'check'} end
-- It is written with the event that follows, unless steps are cancelled before that.
local intent = redis.call('LLEN', LOG) + 1
local of = {lane = lane, contract = contract, created = created, asker = asker, agent = agent, started = started,
  version = version, told = true, event = event(at, 'intent.accepted', accepted)}
answer(key, digest, response)
if gives_up then
  redis.call('RPUSH', LOG, of.event)
  of.event = nil
  redis.call('HDEL', RECORD, 'blocked_on', 'ref', 'left')
  move(id, 'blocked', 'running', at)
end
count_intent(outcome == 'completed' and 'complete' or 'fail', 'accepted')
local work = {output = output, result = result, error = problem, payload = payload, condition = condition}
local sealed = seal_work(id, at, session, outcome, work, intent, grace, of)
redis.call('HDEL', HELD, id)
-- The agent already knows; unless jobs are left, no cleanup is needed.
if sealed == 'settling' and redis.call('HEXISTS', STEPS, 'jobs') == 0 then redis.call('ZREM', TIMERS, id) end
return {'new', response}
