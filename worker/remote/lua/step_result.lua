-- Records the result of a tool that the agent ran itself.
--
-- keys
--   log record steps mail(session) epochs stats step_deadlines
-- args
--   id
--   session
--   caller   or ''
--   step
--   outcome  'succeeded' or 'failed'
--   value    as stored
--   payload  of the event
--   digest   of the result
--   message  for the agent
--   most     messages of a mailbox
-- answers
--   ok
--   again     the same result came before
--   step      unknown
--   resolved
--   unknown
--   foreign
--   expired
--   terminal  state
--   sealed
--   blocked   what for
local at = now()
local no = refusal(session, caller, at)
if no and (no[1] == 'unknown' or no[1] == 'foreign' or no[1] == 'expired') then return no end
local status, known = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' answer'))
if not status then return {'step'} end
if status ~= 'pending' then return {known == digest and 'again' or 'resolved'} end
-- A step that awaits approval has not begun.
if no and awaited(step) then return {'resolved'} end
redis.call('HINCRBY', RECORD, 'log_bytes', #payload)
close_step(id, step, outcome)
redis.call('HSET', STEPS, step .. ' value', value, step .. ' answer', digest)
if outcome == 'succeeded' then time_step(step, at) end
emit(at, outcome == 'succeeded' and 'step.completed' or 'step.failed', payload, step)
post(redis.call('HGET', RECORD, 'epoch'), MAIL, at, most, message)
wake()
return {'ok'}
