-- Cancels an execution on request.
--
-- keys
--   log record steps by_state deadlines ended leases queued stats step_deadlines timers
-- hook keys
--   journal legs money open_payments sums wallets
-- args
--   id
--   payload  of execution.cancelled
--   by       'seeker' or 'operator'
--   forfeit  '1' when the seeker forfeits its money
-- answers
--   cancelled  from which state
--   terminal   state
--   sealed
--   forfeits   amount that the seeker would lose
--   unknown
local state, sealed_by, phase, started, parked =
  unpack(get('state', 'sealed_by', 'phase', 'first_started', 'parked'))
if not state then return {'unknown'} end
if TERMINAL[state] then return {'terminal', state} end
if sealed_by or phase == 'settling' then return {'sealed'} end
-- A seeker who paid before the work and cancels after its start would lose its money, unless the work had failed by
-- then: it must forfeit explicitly. Under after_work the run is uncharged, and a wallet's number of those is
-- limited.
local kept = by == 'seeker' and started and (parked or '') == ''
local forfeited = kept and forfeit ~= '1' and money_forfeited()
if forfeited then return {'forfeits', forfeited} end
local at = now()
cancel_steps(id, at, 'execution cancelled', 0)
finish(id, at, state, 'cancelled', payload, 0, kept and 'kept' or 'customer_request')
return {'cancelled', state}
