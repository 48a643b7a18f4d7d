-- Queues a notice again for the operator, whatever its state.
--
-- keys
--   outbox hooks
-- args
--   notice
--   hook    number of the webhook
-- returns
--   1, or 0 when there never was such a notice
if redis.call('HEXISTS', HOOKS, notice .. ' attempts') == 0 then return 0 end
redis.call('HDEL', HOOKS, 'gone ' .. hook)
redis.call('HSET', HOOKS, notice .. ' attempts', '0')
redis.call('ZADD', OUTBOX, whole(now()), notice)
return 1
