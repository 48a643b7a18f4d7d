-- Leases notices for one send each. If the sender dies, another takes over when the lease expires.
--
-- keys
--   outbox hooks(executions)* log(executions)* record(executions)*
-- args
--   lease     us
--   notices*  in the order of their executions; the last word of each is the number of its webhook
-- returns
--   time, and of each leased notice: itself, number of the attempt, sequence of its event, the event, the record
local at, begun = now(), {}
for n, notice in ipairs(notices) do
  local due, gone = redis.call('ZSCORE', OUTBOX, notice), 'gone ' .. string.match(notice, '%d+$')
  if not due or tonumber(due) > at then
    due = nil
  elseif redis.call('EXISTS', RECORD[n]) == 0 then
    redis.call('ZREM', OUTBOX, notice)
  elseif redis.call('HEXISTS', HOOKS[n], gone) == 1 then
    redis.call('ZREM', OUTBOX, notice)
    redis.call('HSET', HOOKS[n], notice .. ' last', whole(at) .. ' not sent: the webhook is gone')
  else
    redis.call('ZADD', OUTBOX, whole(at + tonumber(lease)), notice)
    local sequence = tonumber(string.match(notice, '%-(%d+) %d+$')) or redis.call('LLEN', LOG[n])
    begun[#begun + 1] = {notice, redis.call('HINCRBY', HOOKS[n], notice .. ' attempts', 1), whole(sequence),
      redis.call('LINDEX', LOG[n], whole(sequence - 1)), redis.call('HGETALL', RECORD[n])}
  end
end
return {whole(at), begun}
