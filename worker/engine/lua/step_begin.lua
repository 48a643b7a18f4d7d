-- Begins a step, or answers from the record if it was begun before.
--
-- keys
--   log record steps step_deadlines
-- args
--   id
--   fence
--   key
--   step
--   tool
--   digest       of the arguments
--   attempts     at most
--   timeout      us
--   accepted     payload of intent.accepted
--   created      payload of step.created up to where the deadline belongs
--   most_events
--   most_bytes
-- answers
--   new        step, attempt
--   again      step, attempt
--   succeeded  step, result
--   failed     step, error
--   timed_out  step
--   cancelled  step
--   mismatch
--   full
--   lost
local timeout = tonumber(timeout)
local at = now()
if not holds(fence, at) then return {'lost'} end
local known = redis.call('HGET', STEPS, 'key ' .. key)
if known then
  local name, sum, status, value, attempt, began_by, its_timeout = unpack(redis.call('HMGET', STEPS, known .. ' tool',
    known .. ' digest', known .. ' status', known .. ' value', known .. ' attempt', known .. ' fence', known .. ' timeout'))
  if name ~= tool or sum ~= digest then return {'mismatch'} end
  if status ~= 'pending' then return {status, known, value} end
  local job = redis.call('HGET', STEPS, known .. ' job')
  if began_by == 'approved' or (job and began_by ~= fence) then
    -- Its first attempt, or a runner's: do not begin another one here.
    redis.call('HSET', STEPS, known .. ' fence', fence)
    redis.call('ZADD', STEP_DEADLINES, whole(at + tonumber(its_timeout)), id .. ' ' .. known)
  elseif began_by ~= fence then
    attempt = redis.call('HINCRBY', STEPS, known .. ' attempt', 1)
    redis.call('HSET', STEPS, known .. ' fence', fence)
    redis.call('ZADD', STEP_DEADLINES, whole(at + tonumber(its_timeout)), id .. ' ' .. known)
    emit(at, 'step.retried', '{"next_attempt":' .. attempt .. '}', known)
    wake()
  end
  return {'again', known, tostring(attempt)}
end
if not fits(2, #accepted + #created, most_events, most_bytes) then return {'full'} end
local open = open_steps()
open[#open + 1] = step
redis.call('HSET', STEPS, 'key ' .. key, step, step .. ' tool', tool, step .. ' digest', digest,
  step .. ' status', 'pending', step .. ' attempt', '1', step .. ' attempts', attempts, step .. ' fence', fence,
  step .. ' timeout', whole(timeout), step .. ' created', whole(at), 'open', table.concat(open, ' '))
redis.call('ZADD', STEP_DEADLINES, whole(at + timeout), id .. ' ' .. step)
local intent = emit(at, 'intent.accepted', accepted)
emit(at, 'step.created', created .. '"' .. iso(at + timeout) .. '"}', step, intent, intent)
wake()
return {'new', step, '1'}
