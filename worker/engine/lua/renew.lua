-- Renews a lease, never past the run limit.
--
-- keys
--   record leases
-- args
--   id
--   fence
--   lease  us
-- answers
--   held
--   lost
--   overtime
local lease = tonumber(lease)
local at = now()
if not holds(fence, at) then return 'lost' end
local run_until = tonumber(redis.call('HGET', RECORD, 'run_until'))
if run_until <= at then return 'overtime' end
local until_ = math.min(at + lease, run_until)
redis.call('HSET', RECORD, 'lease', whole(until_))
redis.call('ZADD', LEASES, whole(until_), id)
return 'held'
