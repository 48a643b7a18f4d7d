-- Makes sure that an execution is picked up: its timer is due, or a queue lost it.
--
-- keys
--   log record steps by_state.pending by_state.blocked express queued timers
-- args
--   id
-- answers
--   queued  lane
--   attend  its agent or its runners need attention
--   early
--   gone
local state, phase, lane, due, wait_until = unpack(get('state', 'phase', 'lane', 'due', 'wait_until'))
local at = now()
if state and (lane == 'remote' or (TERMINAL[state] and redis.call('HEXISTS', STEPS, 'jobs') == 1)) then
  if tonumber(due or 0) > at and state == 'pending' then return {'early'} end
  return {'attend'}
end
if state == 'blocked' and wait_until then
  if tonumber(wait_until) > at then return {'early'} end
  local key, payload = unpack(get('wait_key', 'wait_expired'))
  redis.call('HSET', STEPS, 'wait ' .. key, 'expired')
  run_again(id, at, lane, payload, 0)
  return {'queued', lane}
end
if state ~= 'pending' or phase ~= 'working' then
  redis.call('ZREM', QUEUED, id)
  redis.call('ZREM', TIMERS, id)
  return {'gone'}
end
if tonumber(due or 0) > at then return {'early'} end
queue(id, at, lane, true)
return {'queued', lane}
