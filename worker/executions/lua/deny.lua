-- Writes down that a tool call was refused.
-- KEYS   transition(id), epochs
-- ARGV   id, session, idempotency key or '', digest of the intent, payload of intent.denied, response,
--        'denied' or 'rate_limited', most events, most bytes
-- Result {'new', response}, {'again', response}, {'mismatch'}, {'full'} or a refusal
local at = now()
typed('ZCARD', KEYS[25])
local before = answered(ARGV[3], ARGV[4])
if before then return before end
local no = refusal(ARGV[2], '', KEYS[25], at)
if no then return no end
if not fits(1, #ARGV[5], ARGV[8], ARGV[9]) then return {'full'} end
answer(ARGV[3], ARGV[4], ARGV[6])
emit(at, 'intent.denied', ARGV[5])
count_intent('invoke_tool', ARGV[7])
wake()
return {'new', ARGV[6]}
