-- Ends an execution that is older than it may become.
-- KEYS   transition(id)
-- ARGV   id, payload of execution.failed for its age, for a broken latency promise, for a missing payment,
--        for a contract's deadline
-- Result 'failed' or 'gone'
local id = ARGV[1]
local state, ends_by, sla_by, phase, contract, sealed =
  unpack(get('state', 'ends_by', 'sla_by', 'phase', 'contract', 'sealed_by'))
local at = now()
if phase == 'settling' and not sealed then
  -- Paid before the work: only the settlement's outcome may move it, and it is looked at again after that.
  redis.call('ZADD', DEADLINES, whole(at + 1e6), id)
  return 'gone'
end
if not state or TERMINAL[state] or (sealed and phase ~= 'payment_due') then
  redis.call('ZREM', DEADLINES, id)
  return 'gone'
end
local late = tonumber(ends_by) <= at
if not late and tonumber(sla_by or 'inf') > at then return 'gone' end
local payload = late and (contract and ARGV[5] or ARGV[2]) or ARGV[3]
if phase == 'payment_due' or phase == 'offered' then payload = ARGV[4] end
redis.call('HSET', RECORD, 'error', payload)
cancel_steps(id, at, 'execution timed out', 0)
finish(id, at, state, 'failed', payload, 0, 'deadline_missed')
return 'failed'
