-- Grants the lease on a pending execution: a new fence, and an attempt used up. Work whose authorization would
-- end before its settlement is not started.
-- KEYS   transition(id)
-- ARGV   id, lease in us, who takes it, session id
-- Result {'taken', at, field, value, ...} or {'gone'}
local id, lease, worker, session = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local state, phase, due, ends_by, limit, sla_by =
  unpack(get('state', 'phase', 'due', 'ends_by', 'run_limit', 'sla_by'))
local at = now()
if state ~= 'pending' then
  redis.call('ZREM', QUEUED, id)
  return {'gone'}
end
ends_by = math.min(tonumber(ends_by), tonumber(sla_by or ends_by))
if phase ~= 'working' or tonumber(due or 0) > at or ends_by <= at then return {'gone'} end
local number = outlived(at)
if number then
  redis.call('ZREM', QUEUED, id)
  let_go(id, at, number)
  return {'gone'}
end
local run_until = math.min(at + tonumber(limit), ends_by)
local until_ = math.min(at + lease, run_until)
redis.call('HINCRBY', RECORD, 'fence', 1)
redis.call('HINCRBY', RECORD, 'attempt', 1)
redis.call('HSET', RECORD, 'lease', whole(until_), 'started', whole(at), 'run_until', whole(run_until),
  'worker', worker, 'session', session)
redis.call('HSETNX', RECORD, 'first_started', whole(at))
move(id, 'pending', 'running', at)
redis.call('ZREM', QUEUED, id)
redis.call('ZADD', LEASES, whole(until_), id)
emit(at, 'execution.started', '{"session_id":"' .. session .. '","consumer_id":"' .. worker .. '"}')
wake()
local reply = {'taken', whole(at)}
for _, value in ipairs(redis.call('HGETALL', RECORD)) do reply[#reply + 1] = value end
return reply
