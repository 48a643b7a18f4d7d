-- The facilitator would settle the payment: the work may begin, or the settlement where that comes first.
-- KEYS   transition(id)
-- ARGV   id, number
-- Result {'working', lane}, {'settling'} or {'gone'}
local id, number = ARGV[1], ARGV[2]
local current, mode = unpack(redis.call('HMGET', MONEY, 'current', 'mode'))
local phase, lane, sealed, latency, ends_by = unpack(get('phase', 'lane', 'sealed_by', 'latency', 'ends_by'))
if current ~= number or paid_with(number, 'state') ~= 'claimed' or phase ~= 'verifying' then return {'gone'} end
local at = now()
turn(id, at, number, 'verified')
redis.call('HSETNX', RECORD, 'verified', whole(at))
emit(at, 'payment.verified', '{"number":' .. number .. '}')
if latency and not sealed then
  local by = tonumber(redis.call('HGET', RECORD, 'verified')) + tonumber(latency)
  redis.call('HSET', RECORD, 'sla_by', whole(by))
  redis.call('ZADD', DEADLINES, whole(math.min(tonumber(ends_by), by)), id)
end
if sealed or mode == 'before_work' then
  redis.call('HSET', RECORD, 'phase', 'settling', 'updated', whole(at))
  redis.call('ZADD', OPEN, whole(at), id)
  wake()
  return {'settling'}
end
redis.call('ZREM', OPEN, id)
redis.call('HSET', RECORD, 'phase', 'working', 'updated', whole(at))
queue(id, at, lane)
wake()
return {'working', lane}
