-- Checks whether a session may act now, and returns what a policy needs to know about its execution.
--
-- keys
--   record steps epochs
-- args
--   id
--   session
--   caller      or ''
--   key         idempotency key or ''
--   digest      of the intent
--   goes_along  '1' for an intent allowed while an approval is pending
-- answers
--   ok        time, agent, labels, created, steps so far
--   again     response
--   mismatch
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
if no and not (goes_along == '1' and goes_on(no)) then return no end
local agent, labels, created = unpack(get('agent', 'labels', 'created'))
return {'ok', whole(at), agent, labels, created, redis.call('HGET', STEPS, 'count') or '0'}
