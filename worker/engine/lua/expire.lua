-- Fails an execution that exceeded one of its time limits.
--
-- keys
--   log record steps by_state deadlines ended leases queued stats step_deadlines timers
-- hook keys
--   journal legs money open_payments sums wallets
-- args
--   id
--   age       payload of execution.failed for its age
--   latency   the same for a broken latency promise
--   unpaid    for a missing payment
--   deadline  for a contract's deadline
-- answers
--   failed
--   gone
local state, ends_by, sla_by, phase, contract, sealed =
  unpack(get('state', 'ends_by', 'sla_by', 'phase', 'contract', 'sealed_by'))
local at = now()
if phase == 'settling' and not sealed then
  -- Paid before the work: only the settlement's outcome may change it; check again later.
  redis.call('ZADD', DEADLINES, whole(at + 1e6), id)
  return 'gone'
end
if not state or TERMINAL[state] or (sealed and phase ~= 'payment_due') then
  redis.call('ZREM', DEADLINES, id)
  return 'gone'
end
local late = tonumber(ends_by) <= at
if not late and tonumber(sla_by or 'inf') > at then return 'gone' end
local payload = late and (contract and deadline or age) or latency
if phase == 'payment_due' or phase == 'offered' then payload = unpaid end
redis.call('HSET', RECORD, 'error', payload)
cancel_steps(id, at, 'execution timed out', 0)
finish(id, at, state, 'failed', payload, 0, 'deadline_missed')
return 'failed'
