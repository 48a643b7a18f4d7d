-- Keeps a lease alive, never past the run limit.
-- KEYS   transition(id)
-- ARGV   id, fence, lease in us
-- Result 'held', or why not: 'lost', 'overtime'
local id, fence, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local at = now()
if not holds(fence, at) then return 'lost' end
local run_until = tonumber(redis.call('HGET', RECORD, 'run_until'))
if run_until <= at then return 'overtime' end
local until_ = math.min(at + lease, run_until)
redis.call('HSET', RECORD, 'lease', whole(until_))
redis.call('ZADD', LEASES, whole(until_), id)
return 'held'
