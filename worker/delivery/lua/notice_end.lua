-- Records the result of an attempt and schedules the next one.
--
-- keys
--   outbox hooks failing_hosts
-- args
--   notice
--   again      next attempt in us, or '' for none
--   line       for the journal
--   host
--   outcome    'ok', 'gone', 'failed' or 'dropped'
--   hook       number of the webhook
--   most       lines
--   forgotten  us without a failure after which a host's failure count restarts
-- returns
--   since when (us) the host has been failing, or '0'
local at = now()
local told = whole(at) .. ' ' .. line
local count = redis.call('HINCRBY', HOOKS, notice .. ' lines', 1)
if count <= tonumber(most) then redis.call('HSET', HOOKS, notice .. ' line ' .. whole(count), told) end
redis.call('HSET', HOOKS, notice .. ' last', told)
if again == '' then redis.call('ZREM', OUTBOX, notice) else redis.call('ZADD', OUTBOX, again, notice) end
if outcome == 'dropped' then return '0' end
if outcome == 'gone' then redis.call('HSET', HOOKS, 'gone ' .. hook, whole(at)) end
if outcome ~= 'failed' then
  redis.call('HDEL', FAILING_HOSTS, host)
  return '0'
end
-- first failure, last failure, number of failures
local since, last, failures = string.match(redis.call('HGET', FAILING_HOSTS, host) or '', '^(%d+) (%d+) (%d+)$')
if not since or at - tonumber(last) > tonumber(forgotten) then since, failures = whole(at), '0' end
redis.call('HSET', FAILING_HOSTS, host, since .. ' ' .. whole(at) .. ' ' .. whole(tonumber(failures) + 1))
return since
