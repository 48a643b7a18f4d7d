-- Remembers for a while that we signed this hash under this id: the signature is the commitment, the seeker holds it.
-- KEYS   draft, all drafts, contract
-- ARGV   hash, how long in us, most drafts
-- Result 'kept', 'differs' (another document has this id) or 'full'
local at = now()
local known = redis.call('GET', KEYS[1]) or redis.call('HGET', KEYS[3], 'hash')
if known and known ~= ARGV[1] then return 'differs' end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', whole(at))
if not known and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return 'full' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', math.floor(tonumber(ARGV[2]) / 1000))
redis.call('ZADD', KEYS[2], whole(at + tonumber(ARGV[2])), KEYS[1])
return 'kept'
