-- Records the result that a runner reports for a job.
--
-- keys
--   log record steps mail(session) jobs(tool) busy epochs retries stats step_deadlines
-- args
--   id
--   session   that the caller found
--   step
--   job       as the runner names it
--   outcome   'succeeded', 'failed' or 'retry'
--   value     as stored
--   payload   of the event
--   last      payload of step.failed for the last failure
--   message
--   most      messages of a mailbox
--   next      the next job
--   shortest  pause, us
--   longest   pause, us
--   timeout   us
--   caller    the only runner that the caller may speak for, or ''
-- answers
--   ok        epoch of the runner that is free now or '', as in all answers
--   retried   the value is not stored
--   again
--   step      unknown
--   resolved
--   moved     the session has changed
--   foreign
local at = now()
local status, answered_by, runner, epoch, past = unpack(redis.call('HMGET', STEPS, step .. ' status',
  step .. ' answered', step .. ' runner', step .. ' epoch', step .. ' past'))
if not status then return {'step', ''} end
if caller ~= '' and runner ~= caller then return {'foreign', ''} end
if (redis.call('HGET', RECORD, 'session') or '') ~= session then return {'moved', ''} end
local old = past and string.find(past .. ' ', ' ' .. job .. ' ', 1, true)
-- The connection that has the job is free, whatever the result.
local free = ''
local has = epoch and redis.call('HGET', BUSY, epoch)
if has and not old and string.match(has, '^%d+ (.+)$') == id .. ' ' .. step then
  redis.call('HDEL', BUSY, epoch)
  free = epoch
end
if answered_by == job or (old and outcome ~= 'succeeded') then return {'again', free} end
if status ~= 'pending' or awaited(step) then return {'resolved', free} end
redis.call('ZREM', JOBS, id .. ' ' .. step)
redis.call('HINCRBY', RECORD, 'log_bytes', #payload)
local attempt, attempts = unpack(redis.call('HMGET', STEPS, step .. ' attempt', step .. ' attempts'))
if outcome == 'retry' and tonumber(attempt) < tonumber(attempts) then
  attempt = redis.call('HINCRBY', STEPS, step .. ' attempt', 1)
  local pause = math.min(tonumber(shortest) * 2 ^ (attempt - 1), tonumber(longest))
  local failed = emit(at, 'step.failed', payload, step)
  emit(at, 'step.retried', '{"next_attempt":' .. attempt .. '}', step, failed, failed)
  add_job(id, step, next, JOBS, at + pause)
  redis.call('HDEL', STEPS, step .. ' stage', step .. ' epoch')
  redis.call('ZADD', RETRIES, whole(at + pause), id .. ' ' .. step)
  due_by(id, step, at + pause + tonumber(timeout))
  wake()
  return {'retried', free}
end
local succeeded = outcome == 'succeeded'
close_step(id, step, succeeded and 'succeeded' or 'failed', nil, step .. ' value', value, step .. ' answered', job)
if succeeded then
  local tool, created = unpack(redis.call('HMGET', STEPS, step .. ' tool', step .. ' created'))
  time_step(tool, created, at, timed(tool))
end
emit(at, succeeded and 'step.completed' or 'step.failed', outcome == 'retry' and last or payload, step)
post(redis.call('HGET', RECORD, 'epoch'), MAIL, at, most, message)
wake()
return {'ok', free}
