-- Failed for now: the execution waits for its seeker to ask for the next attempt, which is free.
-- KEYS   transition(id)
-- ARGV   id, fence, error JSON, 'retry' or 'input' (another body is welcome)
-- Result 'parked' or 'lost'
local id, fence = ARGV[1], ARGV[2]
local at = now()
if not holds(fence, at) then return 'lost' end
redis.call('ZREM', LEASES, id)
redis.call('HSET', RECORD, 'lease', '0', 'due', '9007199254740991', 'parked', ARGV[4], 'error', ARGV[3], 'attempt', '0')
redis.call('HINCRBY', RECORD, ARGV[4] == 'retry' and 'retries_used' or 'inputs_used', 1)
cancel_steps(id, at, 'attempt failed', 0)
-- What succeeded is kept for the next attempt; what did not is tried again.
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
return 'parked'
