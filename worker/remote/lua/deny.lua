-- Records a denied tool call.
--
-- keys
--   log record steps epochs stats
-- args
--   id
--   session
--   caller       or ''
--   key          idempotency key or ''
--   digest       of the intent
--   payload      of intent.denied
--   response
--   decision     'denied' or 'rate_limited'
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
if before then return before end
if not goes_on(no) then return no end
if not fits(1, #payload, most_events, most_bytes) then return {'full'} end
answer(key, digest, response)
emit(at, 'intent.denied', payload)
count_intent('invoke_tool', decision)
wake()
return {'new', response}
