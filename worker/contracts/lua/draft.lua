-- Records for a limited time that we signed this hash under this id. Beyond `most` drafts nothing is recorded, but
-- the draft is accepted: the signature that the seeker holds is the commitment.
--
-- keys
--   draft(contract) drafts contract(contract)
-- args
--   digest  the hash
--   life    us
--   most    drafts
-- answers
--   kept
--   differs  another document has this id
local at = now()
local known = redis.call('GET', DRAFT) or redis.call('HGET', CONTRACT, 'hash')
if known and known ~= digest then return 'differs' end
redis.call('ZREMRANGEBYSCORE', DRAFTS, '-inf', whole(at))
if not known and redis.call('ZCARD', DRAFTS) >= tonumber(most) then return 'kept' end
redis.call('SET', DRAFT, digest, 'PX', math.floor(tonumber(life) / 1000))
redis.call('ZADD', DRAFTS, whole(at + tonumber(life)), DRAFT)
return 'kept'
