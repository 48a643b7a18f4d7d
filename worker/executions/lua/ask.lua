-- A tool call of a local function needs somebody's approval: its step is made, and the execution stands still.
-- KEYS   transition(id)
-- ARGV   1 id, 2 fence, 3 key, 4 step, 5 tool, 6 digest of the arguments, 7 most attempts, 8 time-out (us),
--        9 payload of step.created up to where the deadline belongs, 10 payload of step.approval_required,
--        11 payload of execution.blocked, 12 '1' for a runner, 13 arguments as stored, 14 most events, 15 most bytes
-- Result 'blocked', 'known' (the step was made before), 'full' or 'lost'
local id, fence, key, step = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local at = now()
if not holds(fence, at) then return 'lost' end
if redis.call('HEXISTS', STEPS, 'key ' .. key) == 1 then return 'known' end
if not fits(3, #ARGV[9] + #ARGV[10] + #ARGV[11], ARGV[14], ARGV[15]) then return 'full' end
redis.call('HSET', STEPS, 'key ' .. key, step, step .. ' tool', ARGV[5], step .. ' digest', ARGV[6],
  step .. ' status', 'pending', step .. ' attempt', '1', step .. ' attempts', ARGV[7], step .. ' fence', fence,
  step .. ' created', whole(at), step .. ' timeout', ARGV[8], step .. ' kept', 'kept ' .. key)
if ARGV[12] == '1' then redis.call('HSET', STEPS, step .. ' remote', '1', step .. ' args', ARGV[13]) end
redis.call('HINCRBY', STEPS, 'count', 1)
open_step(step)
local first = emit(at, 'step.created', ARGV[9] .. '"' .. iso(at + tonumber(ARGV[8])) .. '"}', step)
local asked = emit(at, 'step.approval_required', ARGV[10], step, first, first)
stand_still(id, at, 'approval', step, ARGV[11], asked)
wake()
return 'blocked'
