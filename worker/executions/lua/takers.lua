-- How many warm processes a lane has.
-- KEYS   the takers of a lane
-- ARGV   how long ago, in us, a process must have signed
return redis.call('ZCOUNT', KEYS[1], whole(now() - tonumber(ARGV[1])), '+inf')
