-- Records that the facilitator would settle the payment: starts the work, or the settlement if that comes first.
--
-- keys
--   log money record deadlines express journal open_payments queued timers verifying wallets unpaid
--   unpaid_new unpaid_bytes
-- args
--   id
--   number
--   waits   '1' where the request that claimed it waits in the process of the record's asker
-- answers
--   working   lane
--   settling
--   gone
local current, mode, entry, state, amount, hooks, again = unpack(redis.call('HMGET', MONEY, 'current', 'mode', 'unpaid',
  number .. ' state', number .. ' amount', number .. ' hooks', number .. ' rechecked'))
local phase, lane, sealed, latency, ends_by, verified =
  unpack(get('phase', 'lane', 'sealed_by', 'latency', 'ends_by', 'verified'))
local newcomers_now = redis.call('HGET', WALLETS, 'newcomers')
if current ~= number or state ~= 'claimed' or phase ~= 'verifying' then return {'gone'} end
local at = now()
redis.call('ZREM', VERIFYING, id)
if entry then
  unpaid_release(entry)
  redis.call('HDEL', MONEY, 'unpaid')
end
local by = latency and not sealed and tonumber(verified or at) + tonumber(latency)
if by then redis.call('ZADD', DEADLINES, whole(math.min(tonumber(ends_by), by)), id) end
local settles = sealed or mode == 'before_work'
advance(id, at, number, 'verified', amount, hooks, nil, number .. ' verified', whole(at), number .. ' waits', waits)
redis.call('HSET', RECORD, 'phase', settles and 'settling' or 'working', 'updated', whole(at),
  'verified', verified or whole(at), unpack(by and {'sla_by', whole(by)} or {}))
emit(at, 'payment.verified', '{"number":' .. number .. '}')
if settles then
  redis.call('ZADD', OPEN_PAYMENTS, whole(at), id)
  wake()
  tell('settle')
  return {'settling'}
end
redis.call('ZREM', OPEN_PAYMENTS, id)
-- Work whose payment was verified again has waited already.
queue(id, at, lane, again, not verified)
if lane == 'express' and not again then go_ahead(EXPRESS, id, at, newcomers_now) end
wake()
return {'working', lane}
