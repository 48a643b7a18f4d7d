-- Records the results of attempts and schedules the next ones.
--
-- keys
--   outbox failing_hosts hooks(executions)*
-- args
--   most       lines that the journal keeps of a notice
--   forgotten  us without a failure after which a host's failure count restarts
--   ends*      in the order of their executions, five of each: the notice; its next attempt in us, or '' for none;
--              the line for the journal; the host; the outcome, which is 'ok', 'gone', 'failed' or 'dropped'
-- returns
--   of each, since when (us) its host has been failing, or '0'
local at = now()

local function written(notice, journal, again, line)
  local told = whole(at) .. ' ' .. line
  local count = redis.call('HINCRBY', journal, notice .. ' lines', 1)
  if count <= tonumber(most) then redis.call('HSET', journal, notice .. ' line ' .. whole(count), told) end
  redis.call('HSET', journal, notice .. ' last', told)
  if again == '' then redis.call('ZREM', OUTBOX, notice) else redis.call('ZADD', OUTBOX, again, notice) end
end

-- Stores first failure, last failure and number of failures.
local function failed(host)
  local since, last, failures = string.match(redis.call('HGET', FAILING_HOSTS, host) or '', '^(%d+) (%d+) (%d+)$')
  if not since or at - tonumber(last) > tonumber(forgotten) then since, failures = whole(at), '0' end
  redis.call('HSET', FAILING_HOSTS, host, since .. ' ' .. whole(at) .. ' ' .. whole(tonumber(failures) + 1))
  return since
end

local failing = {}
for n = 1, #HOOKS do
  local notice, again, line, host, outcome = unpack(ends, 5 * n - 4, 5 * n)
  written(notice, HOOKS[n], again, line)
  if outcome == 'gone' then redis.call('HSET', HOOKS[n], 'gone ' .. string.match(notice, '%d+$'), whole(at)) end
  if outcome == 'ok' or outcome == 'gone' then redis.call('HDEL', FAILING_HOSTS, host) end
  failing[n] = outcome == 'failed' and failed(host) or '0'
end
return failing
