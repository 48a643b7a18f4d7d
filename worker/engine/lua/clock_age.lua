-- Time since any clock last ticked.
--
-- keys
--   ticks
-- returns
--   microseconds since any clock ticked, or -1
local last = redis.call('ZREVRANGE', TICKS, 0, 0, 'WITHSCORES')[2]
return last and whole(now() - tonumber(last)) or '-1'
