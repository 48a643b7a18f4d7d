-- The operator wants a notice sent once more, whatever became of it.
-- KEYS   outbox, journal of the execution
-- ARGV   notice, number of the webhook
-- Result 1, or 0 when there never was such a notice
if redis.call('HEXISTS', KEYS[2], ARGV[1] .. ' attempts') == 0 then return 0 end
redis.call('HDEL', KEYS[2], 'gone ' .. ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1] .. ' attempts', '0')
redis.call('ZADD', KEYS[1], whole(now()), ARGV[1])
return 1
