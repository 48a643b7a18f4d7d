-- Writes down what became of a try at a step.
-- KEYS   transition(id)
-- ARGV   id, fence, step, 'succeeded' | 'failed' | 'retry', value, payload of the event, which try it was,
--        pause before the next try in us
-- Result {'ok'}, {'again', attempt} for a retry, {'spent'} when no try is left, {'lost'}; given again, the same answer
local id, fence, step, outcome, payload, try = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[6], tonumber(ARGV[7])
local at = now()
if not holds(fence, at) then return {'lost'} end
local status, attempt, attempts, timeout = unpack(redis.call('HMGET', STEPS,
  step .. ' status', step .. ' attempt', step .. ' attempts', step .. ' timeout'))
if status == outcome then return {'ok'} end
if status ~= 'pending' then return {'lost'} end
if outcome == 'retry' then
  if tonumber(attempt) > try then return {'again', attempt} end
  if try >= tonumber(attempts) then return {'spent'} end
  redis.call('HINCRBY', RECORD, 'log_bytes', #payload)
  redis.call('HSET', STEPS, step .. ' attempt', whole(try + 1))
  redis.call('ZADD', STEP_DEADLINES, whole(at + tonumber(ARGV[8]) + tonumber(timeout)), id .. ' ' .. step)
  local failed = emit(at, 'step.failed', payload, step)
  emit(at, 'step.retried', '{"next_attempt":' .. whole(try + 1) .. '}', step, failed, failed)
  wake()
  return {'again', whole(try + 1)}
end
redis.call('HINCRBY', RECORD, 'log_bytes', #payload)
redis.call('HSET', STEPS, step .. ' value', ARGV[5])
close_step(id, step, outcome)
emit(at, outcome == 'succeeded' and 'step.completed' or 'step.failed', payload, step)
wake()
return {'ok'}
