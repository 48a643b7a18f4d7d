-- Returns the load of a lane.
--
-- keys
--   waits=any takers=zset leases stats ticks verifying
-- args
--   agent
--   lane
--   silence  us in which a taker must have signed
-- returns
--   time, waiting, takers, mean duration of the agent in us or 0, age of the last tick in us or -1, executions under
--   way, claims being verified, mean duration of the lane's executions in us or 0
local at = now()
local kind = redis.call('TYPE', WAITS).ok
local waiting = kind == 'list' and redis.call('LLEN', WAITS) or kind == 'zset' and redis.call('ZCARD', WAITS) or 0
local last = redis.call('ZREVRANGE', TICKS, 0, 0, 'WITHSCORES')[2]
return {whole(at), waiting, redis.call('ZCOUNT', TAKERS, whole(at - tonumber(silence)), '+inf'),
  redis.call('HGET', STATS, 'mean_us ' .. agent) or '0', last and whole(at - tonumber(last)) or '-1',
  redis.call('ZCARD', LEASES), redis.call('ZCOUNT', VERIFYING, whole(at - 30e6), '+inf'),
  redis.call('HGET', STATS, 'lane_us ' .. lane) or '0'}
