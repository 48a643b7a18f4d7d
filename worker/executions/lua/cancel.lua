-- Ends an execution by request.
-- KEYS   transition(id)
-- ARGV   id, payload of execution.cancelled, who asks: 'seeker' or 'operator'
-- Result {'cancelled', from}, {'terminal', state}, {'sealed'} or {'unknown'}
local id = ARGV[1]
local state, sealed_by, phase, started, parked =
  unpack(get('state', 'sealed_by', 'phase', 'first_started', 'parked'))
if not state then return {'unknown'} end
if TERMINAL[state] then return {'terminal', state} end
if sealed_by or phase == 'settling' then return {'sealed'} end
local at = now()
cancel_steps(id, at, 'execution cancelled', 0)
-- A seeker who paid before the work and cancels it after its start has bought what was done, unless it had
-- failed by then. Under after_work it is unpaid work, of which a wallet may have only so much.
local kept = ARGV[3] == 'seeker' and started and (parked or '') == ''
if kept then unpaid(at) end
finish(id, at, state, 'cancelled', ARGV[2], 0, kept and 'kept' or 'customer_request')
return {'cancelled', state}
