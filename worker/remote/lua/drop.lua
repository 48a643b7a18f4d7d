-- Detaches an execution from the lost connection of its agent.
--
-- keys
--   log record steps waiting(agent) held(epoch) by_state deadlines ended leases queued stats step_deadlines timers
-- hook keys
--   journal legs money open_payments sums wallets
-- args
--   id
--   epoch
--   payload      of execution.failed for used-up attempts
--   most_events
-- answers
--   waits
--   failed
--   stays   blocked, or only money is open
--   gone
local state, held, session, sealed_by, attempt, attempts, contract =
  unpack(get('state', 'epoch', 'session', 'sealed_by', 'attempt', 'attempts', 'contract'))
redis.call('HDEL', HELD, id)
if not state or TERMINAL[state] or held ~= epoch or sealed_by then return 'gone' end
local at = now()
local correlation = emit(at, 'agent.timeout', '{"session_id":' .. quoted(session) .. '}')
if state == 'blocked' then
  redis.call('HSET', RECORD, 'session', '', 'epoch', '')
  wake()
  return 'stays'
end
-- Paid work must come to an end; other work may be retried while it lives or its log has room.
if (contract and tonumber(attempt) >= tonumber(attempts)) or redis.call('LLEN', LOG) >= tonumber(most_events) then
  redis.call('HSET', RECORD, 'error', payload, 'session', '', 'epoch', '')
  cancel_steps(id, at, 'agent disconnected', correlation)
  finish(id, at, state, 'failed', payload, correlation)
  return 'failed'
end
take_back(id, state, at, 'agent_disconnect', correlation)
line_up(id, WAITING)
wake()
return 'waits'
