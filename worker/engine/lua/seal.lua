-- Stores the result of the work and ends it.
--
-- keys
--   log record steps by_state deadlines ended leases queued stats step_deadlines timers
-- hook keys
--   journal legs life money open_payments sums wallets writers
-- args
--   id
--   fence
--   outcome    'completed' or 'failed'
--   output     JSON
--   result     JSON
--   problem    JSON
--   payload    of the terminal event
--   condition  refund condition
--   grace      us that the settler of a waiting request goes first
-- answers
--   ok
--   settling
--   lost
local state, held, until_, sealed_by, phase, lane, contract, created, asker, agent, started, version = unpack(get(
  'state', 'fence', 'lease', 'sealed_by', 'phase', 'lane', 'contract', 'created', 'asker', 'agent', 'started', 'version'))
if sealed_by == fence then return phase == 'done' and 'ok' or 'settling' end
local at = now()
if state ~= 'running' or held ~= fence or tonumber(until_) < at then return 'lost' end
local work = {output = output, result = result, error = problem, payload = payload, condition = condition}
local of = {lane = lane, contract = contract, created = created, asker = asker, agent = agent, started = started,
  version = version}
return seal_work(id, at, fence, outcome, work, 0, grace, of)
