-- Leave to send a notice now; whoever dies with it is replaced when the leave lapses.
-- KEYS   outbox, journal of the execution
-- ARGV   notice, leave in us, number of the webhook
-- Result {number of the attempt, time} or {0}; a webhook that wants no more calls has no notices
local at = now()
local due = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not due or tonumber(due) > at then return {0} end
if redis.call('HEXISTS', KEYS[2], 'gone ' .. ARGV[3]) == 1 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1] .. ' last', whole(at) .. ' not sent: the webhook is gone')
  return {0}
end
redis.call('ZADD', KEYS[1], whole(at + tonumber(ARGV[2])), ARGV[1])
return {redis.call('HINCRBY', KEYS[2], ARGV[1] .. ' attempts', 1), whole(at)}
