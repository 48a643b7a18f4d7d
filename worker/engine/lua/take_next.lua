-- Takes an execution that was seen in the express lane, as take.lua does, if it is still there. Sent with the seal of
-- the run before, which saves a round trip.
--
-- keys
--   log record by_state.pending by_state.running express hooked leases queued stats
-- hook keys
--   deadlines journal money open_payments sums wallets
-- args
--   id
--   lease    us
--   worker   who takes it
--   session
--   instead  '1' where another id may come in its stead
--   waits    '1' where its run comes after another one
-- answers
--   taken  time, field, value, ...
--   last   it is left in the lane: its last attempt would be lost if the lease lapsed before its run began
--   other  an id removed from the lane in its stead, whose lease is not taken, or ''

-- It was seen a run ago, so it is near the front, or gone.
local NEAR = 64
local lease = tonumber(lease)
local record, money = waiting_work()
if redis.call('LPOS', EXPRESS, id, 'MAXLEN', NEAR) then
  if waits == '1' then
    local attempt, attempts = unpack(get('attempt', 'attempts'))
    if attempt and attempt + 1 >= tonumber(attempts) then return {'last'} end
  end
  redis.call('LREM', EXPRESS, 1, id)
  local granted = grant(id, lease, worker, session, record, money)
  if granted then return {'taken', unpack(granted)} end
end
return {'other', instead == '1' and redis.call('LPOP', EXPRESS) or ''}
