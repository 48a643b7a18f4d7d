-- Stores the result of the work and ends it.
-- KEYS   transition(id)
-- ARGV   id, fence, 'completed' or 'failed', output JSON, result JSON, error JSON, payload of the terminal event,
--        refund condition, how long the settler of a waiting request goes first (us)
-- Result 'ok', 'settling' or 'lost'; the same call again has the same result
local id, fence, outcome = ARGV[1], ARGV[2], ARGV[3]
local state, held, until_, sealed_by, phase = unpack(get('state', 'fence', 'lease', 'sealed_by', 'phase'))
if sealed_by == fence then return phase == 'done' and 'ok' or 'settling' end
local at = now()
if state ~= 'running' or held ~= fence or tonumber(until_) < at then return 'lost' end
local work = {output = ARGV[4], result = ARGV[5], error = ARGV[6], payload = ARGV[7], condition = ARGV[8]}
return seal_work(id, at, fence, outcome, work, 0, ARGV[9])
