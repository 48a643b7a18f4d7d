-- Sets the tools that a runner's connection offers from now on.
--
-- keys
--   connection(epoch) leaves=offers(left)* joins=offers(joined)* epochs
-- args
--   epoch
--   member  in the offers
--   tools   as JSON
-- returns
--   1, or 0 when the connection has ended
if not alive(epoch, now()) then return 0 end
for _, key in ipairs(LEAVES) do redis.call('ZREM', key, member) end
for _, key in ipairs(JOINS) do redis.call('ZADD', key, 0, member) end
redis.call('HSET', CONNECTION, 'tools', tools)
return 1
