-- Registers a warm process. Removes those that have not signed on for a minute.
--
-- keys
--   takers(lane)
-- args
--   name
-- returns
--   nothing
redis.call('ZADD', TAKERS, whole(now()), name)
redis.call('ZREMRANGEBYSCORE', TAKERS, '-inf', whole(now() - 60e6))
return 1
