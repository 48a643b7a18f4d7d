-- A remote agent waits for a signal: answered at once by one that came before, else the execution stands still.
-- KEYS   transition(id), epochs, mailbox
-- ARGV   1 id, 2 session, 3 caller or '', 4 idempotency key or '', 5 digest of the intent, 6 signal type,
--        7 payload of intent.accepted, 8 of execution.blocked, 9 of execution.resumed, 10 response,
--        11 most messages of a mailbox, 12 most events, 13 most bytes
-- Result {'new', response}, {'again', response}, {'mismatch'}, {'full'} or a refusal
local id, session, kind = ARGV[1], ARGV[2], ARGV[6]
typed('ZCARD', KEYS[25])
typed('LLEN', KEYS[26])
local at = now()
local no = refusal(session, ARGV[3], KEYS[25], at)
if no and (no[1] == 'unknown' or no[1] == 'foreign' or no[1] == 'expired') then return no end
local before = answered(ARGV[4], ARGV[5])
if before or no then return before or no end
if not fits(3, #ARGV[7] + #ARGV[8] + #ARGV[9], ARGV[12], ARGV[13]) then return {'full'} end
answer(ARGV[4], ARGV[5], ARGV[10])
count_intent('wait', 'accepted')
local intent = emit(at, 'intent.accepted', ARGV[7])
local seq = unused_signal(kind)
if seq then
  emit(at, 'execution.resumed', ARGV[9], nil, intent, intent)
  post(KEYS[25], redis.call('HGET', RECORD, 'epoch'), KEYS[26], at, ARGV[11], '@signal ' .. id .. ' ' .. seq)
else
  block(id, at, 'signal', kind, ARGV[8], intent)
end
wake()
return {'new', ARGV[10]}
