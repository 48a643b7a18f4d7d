-- What became of a tool that the agent ran itself.
-- KEYS   transition(id), epochs, mailbox
-- ARGV   id, session, caller or '', step, 'succeeded' or 'failed', value as stored, payload of the event,
--        digest of the result, message for the agent, most messages of a mailbox
-- Result {'ok'}, {'again'} (the same result came before), {'step'} (unknown), {'resolved'} or a refusal
local id, session, step, outcome = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
typed('ZCARD', KEYS[25])
typed('LLEN', KEYS[26])
local at = now()
local no = refusal(session, ARGV[3], KEYS[25], at)
if no and (no[1] == 'unknown' or no[1] == 'foreign' or no[1] == 'expired') then return no end
local status, known = unpack(redis.call('HMGET', STEPS, step .. ' status', step .. ' answer'))
if not status then return {'step'} end
if status ~= 'pending' then return {known == ARGV[8] and 'again' or 'resolved'} end
-- A step that somebody has to approve has not begun.
if redis.call('HGET', RECORD, 'ref') == step then return {'resolved'} end
redis.call('HINCRBY', RECORD, 'log_bytes', #ARGV[7])
close_step(id, step, outcome)
redis.call('HSET', STEPS, step .. ' value', ARGV[6], step .. ' answer', ARGV[8])
if outcome == 'succeeded' then time_step(step, at) end
emit(at, outcome == 'succeeded' and 'step.completed' or 'step.failed', ARGV[7], step)
post(KEYS[25], redis.call('HGET', RECORD, 'epoch'), KEYS[26], at, ARGV[10], ARGV[9])
wake()
return {'ok'}
