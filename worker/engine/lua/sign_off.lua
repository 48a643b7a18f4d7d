-- Removes a warm process that takes no more work from its lane.
--
-- keys
--   takers(lane)
-- args
--   name
-- returns
--   nothing
redis.call('ZREM', TAKERS, name)
return 1
