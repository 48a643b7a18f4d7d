-- A warm process is there. Those that have not signed for a minute are forgotten.
-- KEYS   the takers of a lane
-- ARGV   name
redis.call('ZADD', KEYS[1], whole(now()), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now() - 60e6))
return 1
