-- Puts a pending execution into its agent's queue, or removes it from a queue where it no longer belongs. Also handles
-- one that resumed without an agent: it becomes pending again when no agent came in time.
--
-- keys
--   log record steps waiting(agent) by_state leases queued stats step_deadlines timers
-- args
--   id
-- answers
--   waits
--   early
--   gone
local at, waits_until = now(), unclaimed()
if waits_until and waits_until > at then
  redis.call('ZADD', WAITING, redis.call('HGET', RECORD, 'created'), id)
  redis.call('ZADD', TIMERS, whole(waits_until), id)
  return 'waits'
end
if waits_until then claim_back(id, at) end
local state, phase, lane, due = unpack(get('state', 'phase', 'lane', 'due'))
if state ~= 'pending' or phase ~= 'working' or lane ~= 'remote' then
  redis.call('ZREM', WAITING, id)
  if not (state and TERMINAL[state]) then redis.call('ZREM', TIMERS, id) end
  return 'gone'
end
if tonumber(due or 0) > at then return 'early' end
line_up(id, WAITING)
if waits_until then wake() end
return 'waits'
