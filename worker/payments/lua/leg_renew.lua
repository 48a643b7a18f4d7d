-- Keeps the leave to settle a leg while the facilitator takes its time.
-- KEYS   transition(id)
-- ARGV   id, number, 'refund' or 'fee', token, lease in us
-- Result 1 or 0
local p = ARGV[2] .. ' ' .. ARGV[3] .. ' '
local state, holder = unpack(redis.call('HMGET', MONEY, p .. 'state', p .. 'token'))
if holder ~= ARGV[4] or (state ~= 'settling' and state ~= 'unknown') then return 0 end
local until_ = whole(now() + tonumber(ARGV[5]))
redis.call('HSET', MONEY, p .. 'lease', until_)
redis.call('ZADD', LEGS, 'XX', until_, ARGV[3] .. ' ' .. ARGV[1] .. ' ' .. ARGV[2])
return 1
