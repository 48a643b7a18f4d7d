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
local no, epoch = refusal(session, caller, at)
if no and (no[1] == 'unknown' or no[1] == 'foreign' or no[1] == 'expired') then return no end
local status, known, tool, created, open = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' answer',
  step .. ' tool', step .. ' created', 'open'))
if not status then return {'step'} end
if status ~= 'pending' then return {known == digest and 'again' or 'resolved'} end
-- A step that awaits approval has not begun.
if no and awaited(step) then return {'resolved'} end
local measured = timed(tool)
redis.call('HINCRBY', RECORD, 'log_bytes', #payload)
close_step(id, step, outcome, open, step .. ' value', value, step .. ' answer', digest)
if outcome == 'succeeded' then time_step(tool, created, at, measured) end
emit(at, outcome == 'succeeded' and 'step.completed' or 'step.failed', payload, step)
post_living(epoch, MAIL, most, message)
wake()
return {'ok'}
