-- Assigns a waiting job to an idle runner.
--
-- keys
--   log steps jobs(tool) mail(epoch) busy epochs step_deadlines turns
-- args
--   id
--   step
--   member    of the runner in the offers of the tool
--   name    the runner
--   runner    as JSON
--   turn_of  the tool's field in turns
--   announced  '1' when its dispatch is already in the log
--   most    messages of a mailbox
-- answers
--   sent
--   gone   no longer needed
--   early
--   behind  another job of the tool has waited longer
--   busy   try another runner
local epoch, at = epoch_of(member), now()
local waiting = redis.call('ZSCORE', JOBS, id .. ' ' .. step)
if not waiting then return 'gone' end
if redis.call('HGET', STEPS, step .. ' status') ~= 'pending' then
  redis.call('ZREM', JOBS, id .. ' ' .. step)
  return 'gone'
end
if tonumber(waiting) > at then return 'early' end
local first = redis.call('ZRANGEBYSCORE', JOBS, '-inf', whole(at), 'LIMIT', 0, 1)[1]
if first ~= id .. ' ' .. step then return 'behind' end
local has = redis.call('HGET', BUSY, epoch)
if has and tonumber(string.match(has, '^%d+')) > at then return 'busy' end
if not post(epoch, MAIL, at, most, '@job ' .. id .. ' ' .. step) then return 'busy' end
local job, timeout = unpack(redis.call('HMGET', STEPS, step .. ' job', step .. ' timeout'))
local deadline = tonumber(redis.call('ZSCORE', STEP_DEADLINES, id .. ' ' .. step))
if not deadline then
  -- The calling function is between two runs. The runner works meanwhile, up to the time limit of any job.
  deadline = at + tonumber(timeout)
  due_by(id, step, deadline)
end
redis.call('ZREM', JOBS, id .. ' ' .. step)
redis.call('HSET', BUSY, epoch, whole(deadline) .. ' ' .. id .. ' ' .. step)
redis.call('HSET', TURNS, turn_of, member)
redis.call('HSET', STEPS, step .. ' runner', name, step .. ' epoch', epoch, step .. ' stage', 'dispatched')
if announced ~= '1' then
  local payload = '{"runner_id":' .. runner .. ',"job_id":' .. quoted(job) .. ',"deadline":"' .. iso(deadline) .. '"}'
  emit(at, 'step.dispatched', payload, step)
  wake()
end
return 'sent'
