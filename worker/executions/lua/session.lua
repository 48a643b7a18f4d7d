-- Whether a session may act now, and what a policy has to know about its execution.
-- KEYS   transition(id), epochs
-- ARGV   id, session, caller or '', idempotency key or '', digest of the intent
-- Result {'ok', at, agent, labels, created, steps so far}, {'again', response}, {'mismatch'} or a refusal
local at = now()
local no = refusal(ARGV[2], ARGV[3], KEYS[25], at)
if no and (no[1] == 'unknown' or no[1] == 'foreign' or no[1] == 'expired') then return no end
local before = answered(ARGV[4], ARGV[5])
if before or no then return before or no end
local agent, labels, created = unpack(get('agent', 'labels', 'created'))
return {'ok', whole(at), agent, labels, created, redis.call('HGET', STEPS, 'count') or '0'}
