-- Keeps the leave to settle while the facilitator takes its time.
-- KEYS   transition(id)
-- ARGV   id, number, token, lease in us
-- Result 1 or 0
local id, number, token = ARGV[1], ARGV[2], ARGV[3]
local state, holder = paid_with(number, 'state', 'token')
if holder ~= token or (state ~= 'settling' and state ~= 'unknown') then return 0 end
local until_ = whole(now() + tonumber(ARGV[4]))
redis.call('HSET', MONEY, number .. ' lease', until_)
redis.call('ZADD', OPEN, 'XX', until_, id)
return 1
