-- Grants the lease on a pending execution.
--
-- keys
--   log record by_state.pending by_state.running hooked leases queued stats
-- hook keys
--   deadlines journal money open_payments sums wallets
-- args
--   id
--   lease    us
--   worker   who takes it
--   session
-- answers
--   taken  time, field, value, ...
--   gone
local granted = grant(id, tonumber(lease), worker, session, waiting_work())
return granted and {'taken', unpack(granted)} or {'gone'}
