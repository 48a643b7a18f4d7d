-- Parks an execution that failed for now, until its seeker requests the next attempt, which is free.
--
-- keys
--   log record steps by_state.pending by_state.running leases stats step_deadlines
-- hook keys
--   money wallets
-- args
--   id
--   fence
--   problem  JSON
--   why      'retry' or 'input' (another body is welcome)
-- answers
--   parked
--   lost
local at = now()
if not holds(fence, at) then return 'lost' end
money_parked(at)
redis.call('ZREM', LEASES, id)
redis.call('HSET', RECORD, 'lease', '0', 'due', '9007199254740991', 'parked', why, 'error', problem, 'attempt', '0')
redis.call('HINCRBY', RECORD, why == 'retry' and 'retries_used' or 'inputs_used', 1)
cancel_steps(id, at, 'attempt failed', 0)
-- Successful steps are kept for the next attempt; the others are retried.
local steps = redis.call('HGETALL', STEPS)
for i = 1, #steps, 2 do
  if string.sub(steps[i], 1, 4) == 'key ' and redis.call('HGET', STEPS, steps[i + 1] .. ' status') ~= 'succeeded' then
    redis.call('HDEL', STEPS, steps[i])
  end
end
move(id, 'running', 'pending', at)
emit(at, 'execution.reset', '{"reason":"parked","from_status":"running"}')
count('worker_resets_total', 'reason', 'parked')
wake()
tell('look')
return 'parked'
