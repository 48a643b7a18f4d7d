-- Records that the facilitator would settle the payment: starts the work, or the settlement if that comes first.
--
-- keys
--   log money record deadlines express journal open_payments queued sums timers verifying wallets unpaid
--   unpaid_new unpaid_bytes
-- args
--   id
--   number
-- answers
--   working   lane
--   settling
--   gone
local current, mode = unpack(redis.call('HMGET', MONEY, 'current', 'mode'))
local phase, lane, sealed, latency, ends_by = unpack(get('phase', 'lane', 'sealed_by', 'latency', 'ends_by'))
if current ~= number or paid_with(number, 'state') ~= 'claimed' or phase ~= 'verifying' then return {'gone'} end
local at = now()
turn(id, at, number, 'verified')
redis.call('ZREM', VERIFYING, id)
redis.call('HSET', MONEY, number .. ' verified', whole(at))
local entry = redis.call('HGET', MONEY, 'unpaid')
if entry then
  unpaid_release(entry)
  redis.call('HDEL', MONEY, 'unpaid')
end
redis.call('HSETNX', RECORD, 'verified', whole(at))
emit(at, 'payment.verified', '{"number":' .. number .. '}')
if latency and not sealed then
  local by = tonumber(redis.call('HGET', RECORD, 'verified')) + tonumber(latency)
  redis.call('HSET', RECORD, 'sla_by', whole(by))
  redis.call('ZADD', DEADLINES, whole(math.min(tonumber(ends_by), by)), id)
end
if sealed or mode == 'before_work' then
  redis.call('HSET', RECORD, 'phase', 'settling', 'updated', whole(at))
  redis.call('ZADD', OPEN_PAYMENTS, whole(at), id)
  wake()
  tell('settle')
  return {'settling'}
end
redis.call('ZREM', OPEN_PAYMENTS, id)
redis.call('HSET', RECORD, 'phase', 'working', 'updated', whole(at))
-- Work whose payment was verified again has waited already.
local again = (paid_with(number, 'rechecked'))
queue(id, at, lane, again)
if lane == 'express' and not again then go_ahead(EXPRESS, id, at) end
wake()
return {'working', lane}
