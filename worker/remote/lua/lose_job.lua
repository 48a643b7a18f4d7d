-- Reassigns a job whose runner was lost, unless that happened too often.
--
-- keys
--   log record steps jobs(tool) mail(session) busy epochs step_deadlines
-- args
--   id
--   step
--   epoch        of the runner
--   job          the next one
--   most_losses  of one step
--   timeout      us
--   payload      of step.failed
--   value        of the step, as stored
--   message      for the agent
--   most         messages of a mailbox
-- answers
--   waits
--   failed
--   gone
local at = now()
redis.call('HDEL', BUSY, epoch)
local status, had = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' epoch'))
if status ~= 'pending' or had ~= epoch then return 'gone' end
redis.call('HDEL', STEPS, step .. ' epoch', step .. ' stage')
if redis.call('HINCRBY', STEPS, step .. ' losses', 1) > tonumber(most_losses) then
  close_step(id, step, 'failed')
  redis.call('HSET', STEPS, step .. ' value', value)
  emit(at, 'step.failed', payload, step)
  post(redis.call('HGET', RECORD, 'epoch'), MAIL, at, most, message)
  wake()
  return 'failed'
end
add_job(id, step, job, JOBS, at)
due_by(id, step, at + tonumber(timeout))
return 'waits'
