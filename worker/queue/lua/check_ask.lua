-- Queues a check for the check process, and reserves its CPU time from the budgets of its callers.
--
-- keys
--   checks takers=zset check_cpu(callers)*
-- args
--   check      its id, kind and input
--   silence    us within which the check process must have sent a heartbeat
--   most       checks that may wait
--   first      '1' to be checked before the others
--   reserve    CPU us
--   window     ms after which a budget is full again
--   budgets*   CPU us in a window, for each caller
-- answers
--   queued
--   absent  no process takes checks
--   spent   ms until a caller's budget is full again
--   full
local at = now()
if redis.call('ZCOUNT', TAKERS, whole(at - tonumber(silence)), '+inf') == 0 then return {'absent'} end
for i, key in ipairs(CHECK_CPU) do
  if tonumber(redis.call('GET', key) or 0) + tonumber(reserve) > tonumber(budgets[i]) then
    return {'spent', whole(math.max(1, redis.call('PTTL', key)))}
  end
end
if redis.call('LLEN', CHECKS) >= tonumber(most) then return {'full'} end
for _, key in ipairs(CHECK_CPU) do
  redis.call('INCRBY', key, reserve)
  if redis.call('PTTL', key) < 0 then redis.call('PEXPIRE', key, window) end
end
redis.call(first == '1' and 'LPUSH' or 'RPUSH', CHECKS, whole(at) .. ' ' .. check)
return {'queued'}
