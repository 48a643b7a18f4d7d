-- Begins a step, or answers it from the record when it was begun before.
-- KEYS   transition(id)
-- ARGV   id, fence, key, step id, tool, digest of the arguments, most attempts, time-out in us,
--        payload of intent.accepted, payload of step.created up to where the deadline belongs, most events, most bytes
-- Result {'new' | 'again', step, attempt}, {'succeeded', step, result}, {'failed', step, error}, {'mismatch'},
--        {'full'}, {'lost'}
local id, fence, key, step, tool, digest = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local attempts, timeout = ARGV[7], tonumber(ARGV[8])
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
    -- Its first try, or a runner's: no other one is begun here.
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
if not fits(2, #ARGV[9] + #ARGV[10], ARGV[11], ARGV[12]) then return {'full'} end
local open = open_steps()
open[#open + 1] = step
redis.call('HSET', STEPS, 'key ' .. key, step, step .. ' tool', tool, step .. ' digest', digest,
  step .. ' status', 'pending', step .. ' attempt', '1', step .. ' attempts', attempts, step .. ' fence', fence,
  step .. ' timeout', whole(timeout), step .. ' created', whole(at), 'open', table.concat(open, ' '))
redis.call('ZADD', STEP_DEADLINES, whole(at + timeout), id .. ' ' .. step)
local intent = emit(at, 'intent.accepted', ARGV[9])
emit(at, 'step.created', ARGV[10] .. '"' .. iso(at + timeout) .. '"}', step, intent, intent)
wake()
return {'new', step, '1'}
