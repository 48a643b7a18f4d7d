-- Leases a notice for one send. If the sender dies, another takes over when the lease expires.
--
-- keys
--   outbox hooks
-- args
--   notice
--   lease   us
--   hook    number of the webhook
-- returns
--   number of the attempt, time; 0 alone when there is nothing to send
local at = now()
local due = redis.call('ZSCORE', OUTBOX, notice)
if not due or tonumber(due) > at then return {0} end
if redis.call('HEXISTS', HOOKS, 'gone ' .. hook) == 1 then
  redis.call('ZREM', OUTBOX, notice)
  redis.call('HSET', HOOKS, notice .. ' last', whole(at) .. ' not sent: the webhook is gone')
  return {0}
end
redis.call('ZADD', OUTBOX, whole(at + tonumber(lease)), notice)
return {redis.call('HINCRBY', HOOKS, notice .. ' attempts', 1), whole(at)}
