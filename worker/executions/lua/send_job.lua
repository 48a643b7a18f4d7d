-- Hands a step of a local function to the runners, once.
-- KEYS   transition(id), jobs of the tool
-- ARGV   id, fence, step, job, arguments as stored, time-out (us)
-- Result 'ok', or 'lost'
local id, step = ARGV[1], ARGV[3]
typed('ZCARD', KEYS[25])
local at = now()
if not holds(ARGV[2], at) then return 'lost' end
local status, job = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' job'))
if status ~= 'pending' then return 'ok' end
local deadline = at + tonumber(ARGV[6])
due_by(id, step, deadline)
if job then return 'ok' end
redis.call('HSET', STEPS, step .. ' remote', '1', step .. ' args', ARGV[5], step .. ' timeout', ARGV[6])
add_job(id, step, ARGV[4], KEYS[25], at)
emit(at, 'step.dispatched', '{"runner_id":"","job_id":"' .. ARGV[4] .. '","deadline":"' .. iso(deadline) .. '"}', step)
wake()
return 'ok'
