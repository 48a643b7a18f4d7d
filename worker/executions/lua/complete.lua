-- A remote agent says what its work came to.
-- KEYS   transition(id), epochs, held
-- ARGV   1 id, 2 session, 3 caller or '', 4 idempotency key or '', 5 digest of the intent, 6 'completed' or 'failed',
--        7 output JSON, 8 result JSON, 9 error JSON, 10 payload of the terminal event, 11 refund condition,
--        12 how long the settler of a waiting request goes first (us), 13 payload of intent.accepted, 14 response,
--        15 '1' when the output has been held to its schemas
-- Result {'new', response}, {'again', response}, {'mismatch'}, {'steps'} (some are still open), {'check'} (the output
--        may have been promised a shape) or a refusal
local id, session = ARGV[1], ARGV[2]
typed('ZCARD', KEYS[25])
typed('HLEN', KEYS[26])
local at = now()
local no = refusal(session, ARGV[3], KEYS[25], at)
if no and (no[1] == 'unknown' or no[1] == 'foreign' or no[1] == 'expired') then return no end
local before = answered(ARGV[4], ARGV[5])
if before or no then return before or no end
if string.find(redis.call('HGET', STEPS, 'open') or '', '%S') then return {'steps'} end
if ARGV[6] == 'completed' and ARGV[15] ~= '1' then
  local contract, version = unpack(get('contract', 'version'))
  if contract or version then return {'check'} end
end
answer(ARGV[4], ARGV[5], ARGV[14])
local intent = emit(at, 'intent.accepted', ARGV[13])
count_intent(ARGV[6] == 'completed' and 'complete' or 'fail', 'accepted')
local work = {output = ARGV[7], result = ARGV[8], error = ARGV[9], payload = ARGV[10], condition = ARGV[11]}
seal_work(id, at, session, ARGV[6], work, intent, ARGV[12])
redis.call('HDEL', KEYS[26], id)
-- The agent knows; unless jobs are left, there is nothing to see to.
if redis.call('HEXISTS', STEPS, 'jobs') == 0 then redis.call('ZREM', TIMERS, id) end
return {'new', ARGV[14]}
