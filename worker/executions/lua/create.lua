-- Creates an execution, once per id and once per idempotency key.
-- KEYS   transition(id), the idempotency key ('' key name unused when ARGV[2] is ''), the lists it stands in
-- ARGV   id, idempotency ('' or '1'), lane, phase, time-out in us, payload of execution.created, then record fields
-- Result {1, id, at} when created, {0, id} of the one that is there already
local id, keyed, lane, phase, timeout, payload = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
if redis.call('EXISTS', RECORD) == 1 then return {0, id} end
if keyed ~= '' then
  local other = redis.call('GET', KEYS[25])
  if other then return {0, other} end
end
for i = 26, #KEYS do redis.call('ZCARD', KEYS[i]) end
local at = now()
redis.call('HSET', RECORD, 'id', id, 'state', 'pending', 'phase', phase, 'lane', lane, 'attempt', '0', 'fence', '0',
  'created', whole(at), 'updated', whole(at), 'ends_by', whole(at + timeout), unpack(ARGV, 7))
if keyed ~= '' then redis.call('SET', KEYS[25], id) end
for i = 26, #KEYS do redis.call('ZADD', KEYS[i], whole(at), id) end
redis.call('ZADD', BY_STATE.pending, whole(at), id)
redis.call('ZADD', DEADLINES, whole(at + timeout), id)
emit(at, 'execution.created', payload)
count('worker_executions_total', 'status', 'created')
-- What is for a remote agent stands in that agent's line already: it is one of the lists above.
if phase == 'working' and lane ~= 'remote' then queue(id, at, lane) end
wake()
return {1, id, whole(at)}
