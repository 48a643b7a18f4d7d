-- Gives a waiting job to an idle runner.
-- KEYS   transition(id), epochs, turns, busy, jobs of the tool, mailbox of the runner
-- ARGV   id, step, member of the runner in the offers of the tool, runner, runner as JSON, the tool's field in turns,
--        '1' when its dispatch is told already, most messages of a mailbox
-- Result 'sent', 'gone' (nobody wants it any more), 'early' or 'busy' (ask for another runner)
local id, step, member = ARGV[1], ARGV[2], ARGV[3]
typed('ZCARD', KEYS[25], KEYS[28])
typed('HLEN', KEYS[26], KEYS[27])
typed('LLEN', KEYS[29])
local epoch, at = epoch_of(member), now()
local waiting = redis.call('ZSCORE', KEYS[28], id .. ' ' .. step)
if not waiting then return 'gone' end
if redis.call('HGET', STEPS, step .. ' status') ~= 'pending' then
  redis.call('ZREM', KEYS[28], id .. ' ' .. step)
  return 'gone'
end
if tonumber(waiting) > at then return 'early' end
local has = redis.call('HGET', KEYS[27], epoch)
if has and tonumber(string.match(has, '^%d+')) > at then return 'busy' end
if not post(KEYS[25], epoch, KEYS[29], at, ARGV[8], '@job ' .. id .. ' ' .. step) then return 'busy' end
local job, timeout = unpack(redis.call('HMGET', STEPS, step .. ' job', step .. ' timeout'))
local deadline = tonumber(redis.call('ZSCORE', STEP_DEADLINES, id .. ' ' .. step))
if not deadline then
  -- The function that called it is between two runs. The runner works meanwhile, for as long as any job may take.
  deadline = at + tonumber(timeout)
  due_by(id, step, deadline)
end
redis.call('ZREM', KEYS[28], id .. ' ' .. step)
redis.call('HSET', KEYS[27], epoch, whole(deadline) .. ' ' .. id .. ' ' .. step)
redis.call('HSET', KEYS[26], ARGV[6], member)
redis.call('HSET', STEPS, step .. ' runner', ARGV[4], step .. ' epoch', epoch, step .. ' stage', 'dispatched')
if ARGV[7] ~= '1' then
  local payload = '{"runner_id":' .. ARGV[5] .. ',"job_id":"' .. job .. '","deadline":"' .. iso(deadline) .. '"}'
  emit(at, 'step.dispatched', payload, step)
  wake()
end
return 'sent'
