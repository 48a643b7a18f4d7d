-- The runner that had a job is lost: another one gets it, as long as that does not happen too often.
-- KEYS   transition(id), epochs, busy, jobs of the tool, mailbox of the agent
-- ARGV   id, step, epoch of the runner, the next job, how often a step may lose its runner, time-out (us),
--        payload of step.failed, value of the step as stored, message for the agent, most messages of a mailbox
-- Result 'waits', 'failed' or 'gone'
local id, step, epoch = ARGV[1], ARGV[2], ARGV[3]
typed('ZCARD', KEYS[25], KEYS[27])
typed('HLEN', KEYS[26])
typed('LLEN', KEYS[28])
local at = now()
redis.call('HDEL', KEYS[26], epoch)
local status, had = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' epoch'))
if status ~= 'pending' or had ~= epoch then return 'gone' end
redis.call('HDEL', STEPS, step .. ' epoch', step .. ' stage')
if redis.call('HINCRBY', STEPS, step .. ' losses', 1) > tonumber(ARGV[5]) then
  close_step(id, step, 'failed')
  redis.call('HSET', STEPS, step .. ' value', ARGV[8])
  emit(at, 'step.failed', ARGV[7], step)
  post(KEYS[25], redis.call('HGET', RECORD, 'epoch'), KEYS[28], at, ARGV[10], ARGV[9])
  wake()
  return 'failed'
end
add_job(id, step, ARGV[4], KEYS[27], at)
due_by(id, step, at + tonumber(ARGV[6]))
return 'waits'
