-- Keeps a contract that both parties signed. Until it is paid for it ends by itself.
-- KEYS   contract, unpaid contracts, draft, all drafts
-- ARGV   document, hash, created (us), until when an unpaid one is kept (us), most unpaid contracts
-- Result 'kept', 'known', 'differs' or 'full'
local at = now()
local known = redis.call('HGET', KEYS[1], 'hash') or redis.call('GET', KEYS[3])
if known and known ~= ARGV[2] then return 'differs' end
if redis.call('EXISTS', KEYS[1]) == 1 then return 'known' end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', whole(at))
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[5]) then return 'full' end
redis.call('HSET', KEYS[1], 'document', ARGV[1], 'hash', ARGV[2], 'state', 'signed', 'created', ARGV[3],
  'registered', whole(at))
redis.call('PEXPIRE', KEYS[1], math.max(1, math.floor((tonumber(ARGV[4]) - at) / 1000)))
redis.call('ZADD', KEYS[2], ARGV[4], KEYS[1])
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[4], KEYS[3])
return 'kept'
