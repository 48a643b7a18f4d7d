-- What a runner says became of a job.
-- KEYS   transition(id), epochs, mailbox, busy, jobs of the tool, retries
-- ARGV   1 id, 2 session that the caller found, 3 step, 4 job as the runner names it, 5 'succeeded', 'failed' or
--        'retry', 6 value as stored, 7 payload of the event, 8 payload of step.failed for the last failure, 9 message,
--        10 most messages of a mailbox, 11 the next job, 12 shortest pause (us), 13 longest pause (us),
--        14 time-out (us), 15 only runner that the caller may speak for, or ''
-- Result {what, epoch of the runner that is free now or ''}; what is 'ok', 'retried' (the value is not kept), 'again',
--        'step' (unknown), 'resolved', 'moved' (the session is another by now) or 'foreign'
local id, step, job, outcome = ARGV[1], ARGV[3], ARGV[4], ARGV[5]
typed('ZCARD', KEYS[25], KEYS[28], KEYS[29])
typed('LLEN', KEYS[26])
typed('HLEN', KEYS[27])
local at = now()
local status, answered_by, runner, epoch, past = unpack(redis.call('HMGET', STEPS, step .. ' status',
  step .. ' answered', step .. ' runner', step .. ' epoch', step .. ' past'))
if not status then return {'step', ''} end
if ARGV[15] ~= '' and runner ~= ARGV[15] then return {'foreign', ''} end
if (redis.call('HGET', RECORD, 'session') or '') ~= ARGV[2] then return {'moved', ''} end
local old = past and string.find(past .. ' ', ' ' .. job .. ' ', 1, true)
-- The connection that has the job is free, whatever is said about it.
local free = ''
local has = epoch and redis.call('HGET', KEYS[27], epoch)
if has and not old and string.match(has, '^%d+ (.+)$') == id .. ' ' .. step then
  redis.call('HDEL', KEYS[27], epoch)
  free = epoch
end
if answered_by == job or (old and outcome ~= 'succeeded') then return {'again', free} end
if status ~= 'pending' or redis.call('HGET', RECORD, 'ref') == step then return {'resolved', free} end
redis.call('ZREM', KEYS[28], id .. ' ' .. step)
redis.call('HINCRBY', RECORD, 'log_bytes', #ARGV[7])
local attempt, attempts = unpack(redis.call('HMGET', STEPS, step .. ' attempt', step .. ' attempts'))
if outcome == 'retry' and tonumber(attempt) < tonumber(attempts) then
  attempt = redis.call('HINCRBY', STEPS, step .. ' attempt', 1)
  local pause = math.min(tonumber(ARGV[12]) * 2 ^ (attempt - 1), tonumber(ARGV[13]))
  local failed = emit(at, 'step.failed', ARGV[7], step)
  emit(at, 'step.retried', '{"next_attempt":' .. attempt .. '}', step, failed, failed)
  add_job(id, step, ARGV[11], KEYS[28], at + pause)
  redis.call('HDEL', STEPS, step .. ' stage', step .. ' epoch')
  redis.call('ZADD', KEYS[29], whole(at + pause), id .. ' ' .. step)
  due_by(id, step, at + pause + tonumber(ARGV[14]))
  wake()
  return {'retried', free}
end
local succeeded = outcome == 'succeeded'
close_step(id, step, succeeded and 'succeeded' or 'failed')
redis.call('HSET', STEPS, step .. ' value', ARGV[6], step .. ' answered', job)
if succeeded then time_step(step, at) end
emit(at, succeeded and 'step.completed' or 'step.failed', outcome == 'retry' and ARGV[8] or ARGV[7], step)
post(KEYS[25], redis.call('HGET', RECORD, 'epoch'), KEYS[26], at, ARGV[10], ARGV[9])
wake()
return {'ok', free}
