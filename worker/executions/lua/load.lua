-- How busy a lane is.
-- KEYS   what waits (list or sorted set), takers of the lane, ticks, stats
-- ARGV   agent, how long ago a taker must have signed (us)
-- Result {at, waiting, takers, mean duration of the agent in us or 0, age of the last tick in us or -1}
local at = now()
local kind = redis.call('TYPE', KEYS[1]).ok
local waiting = kind == 'list' and redis.call('LLEN', KEYS[1]) or kind == 'zset' and redis.call('ZCARD', KEYS[1]) or 0
local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
return {whole(at), waiting, redis.call('ZCOUNT', KEYS[2], whole(at - tonumber(ARGV[2])), '+inf'),
  redis.call('HGET', KEYS[4], 'mean_us ' .. ARGV[1]) or '0', last and whole(at - tonumber(last)) or '-1'}
