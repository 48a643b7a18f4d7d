-- Returns the number of warm processes of a lane.
--
-- keys
--   takers(lane)
-- args
--   silence  us in which a process must have signed
-- returns
--   how many
return redis.call('ZCOUNT', TAKERS, whole(now() - tonumber(silence)), '+inf')
