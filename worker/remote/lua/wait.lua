-- A remote agent waits for a signal: an earlier signal answers at once, else the execution blocks.
--
-- keys
--   log record steps mail(session) by_state.running by_state.blocked epochs leases stats
-- args
--   id
--   session
--   caller       or ''
--   key          idempotency key or ''
--   digest       of the intent
--   kind         signal type
--   accepted     payload of intent.accepted
--   blocked      of execution.blocked
--   resumed      of execution.resumed
--   response
--   most         messages of a mailbox
--   most_events
--   most_bytes
-- answers
--   new       response
--   again     response
--   mismatch
--   full
--   unknown
--   foreign
--   expired
--   terminal  state
--   sealed
--   blocked   what for
local at = now()
local no = refusal(session, caller, at)
local before = answered(no, key, digest)
if before or no then return before or no end
if not fits(3, #accepted + #blocked + #resumed, most_events, most_bytes) then return {'full'} end
answer(key, digest, response)
count_intent('wait', 'accepted')
local intent = emit(at, 'intent.accepted', accepted)
local seq = unused_signal(kind)
if seq then
  emit(at, 'execution.resumed', resumed, nil, intent, intent)
  post(redis.call('HGET', RECORD, 'epoch'), MAIL, at, most, '@signal ' .. id .. ' ' .. seq)
else
  block(id, at, 'signal', kind, blocked, intent)
end
wake()
return {'new', response}
