-- Creates an execution, once per id and once per idempotency key.
--
-- keys
--   log record idempotency(scope,key) indexes*=zset by_state.pending deadlines express queued stats timers
-- args
--   id
--   keyed    '1' when there is an idempotency key
--   lane
--   phase
--   timeout  us
--   payload  of execution.created
--   fields*  record fields
-- answers
--   created  id, time
--   known    id of the existing one
local timeout = tonumber(timeout)
if redis.call('HLEN', RECORD) > 0 then return {'known', id} end
if keyed ~= '' then
  local other = redis.call('GET', IDEMPOTENCY)
  if other then return {'known', other} end
end
local at = now()
redis.call('HSET', RECORD, 'id', id, 'state', 'pending', 'phase', phase, 'lane', lane, 'attempt', '0', 'fence', '0',
  'created', whole(at), 'updated', whole(at), 'ends_by', whole(at + timeout), unpack(fields))
if keyed ~= '' then redis.call('SET', IDEMPOTENCY, id) end
for _, key in ipairs(INDEXES) do redis.call('ZADD', key, whole(at), id) end
redis.call('ZADD', BY_STATE.pending, whole(at), id)
redis.call('ZADD', DEADLINES, whole(at + timeout), id)
emit(at, 'execution.created', payload)
count('worker_executions_total', 'status', 'created')
-- Work for a remote agent is already in that agent's queue, which is one of the indexes above.
if phase == 'working' and lane ~= 'remote' then queue(id, at, lane, false, true) end
return {'created', id, whole(at)}
