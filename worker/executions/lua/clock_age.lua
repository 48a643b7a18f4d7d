-- How long ago any clock ticked.
-- KEYS   ticks
-- Result microseconds, or -1
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return last and whole(now() - tonumber(last)) or '-1'
