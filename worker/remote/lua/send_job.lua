-- Sends a local function's step to the runners, once.
--
-- keys
--   log record steps jobs(tool) step_deadlines
-- args
--   id
--   fence
--   step
--   new_job
--   arguments  as stored
--   timeout    us
-- answers
--   ok
--   known  it was sent before, with its arguments stored elsewhere
--   lost
local at = now()
if not holds(fence, at) then return 'lost' end
local status, job = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' job'))
local kept = redis.call('HGET', STEPS, step .. ' args')
local known = kept and kept ~= arguments and 'known' or 'ok'
if status ~= 'pending' then return known end
local deadline = at + tonumber(timeout)
due_by(id, step, deadline)
if job then return known end
redis.call('HSET', STEPS, step .. ' remote', '1', step .. ' args', arguments, step .. ' timeout', timeout)
add_job(id, step, new_job, JOBS, at)
emit(at, 'step.dispatched', '{"runner_id":"","job_id":' .. quoted(new_job) .. ',"deadline":"' .. iso(deadline) .. '"}', step)
wake()
return 'ok'
