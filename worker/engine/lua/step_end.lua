-- Records the outcome of one attempt at a step.
--
-- keys
--   log record steps step_deadlines
-- args
--   id
--   fence
--   step
--   outcome  'succeeded', 'failed' or 'retry'
--   value
--   payload  of the event
--   tried    number of the attempt
--   pause    before the next try, us
-- answers
--   ok
--   again  attempt, for a retry
--   spent  no attempt is left
--   lost
local try = tonumber(tried)
local at = now()
if not holds(fence, at) then return {'lost'} end
local status, attempt, attempts, timeout, open = unpack(redis.call('HMGET', STEPS,
  step .. ' status', step .. ' attempt', step .. ' attempts', step .. ' timeout', 'open'))
if status == outcome then return {'ok'} end
if status ~= 'pending' then return {'lost'} end
if outcome == 'retry' then
  if tonumber(attempt) > try then return {'again', attempt} end
  if try >= tonumber(attempts) then return {'spent'} end
  redis.call('HINCRBY', RECORD, 'log_bytes', #payload)
  redis.call('HSET', STEPS, step .. ' attempt', whole(try + 1))
  redis.call('ZADD', STEP_DEADLINES, whole(at + tonumber(pause) + tonumber(timeout)), id .. ' ' .. step)
  local failed = emit(at, 'step.failed', payload, step)
  emit(at, 'step.retried', '{"next_attempt":' .. whole(try + 1) .. '}', step, failed, failed)
  wake()
  return {'again', whole(try + 1)}
end
redis.call('HINCRBY', RECORD, 'log_bytes', #payload)
close_step(id, step, outcome, open, step .. ' value', value)
emit(at, outcome == 'succeeded' and 'step.completed' or 'step.failed', payload, step)
wake()
return {'ok'}
