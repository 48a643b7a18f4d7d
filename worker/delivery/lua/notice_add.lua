-- Adds notices to the outbox, each once.
--
-- keys
--   outbox hooks(executions)*
-- args
--   notices*  in the order of their executions
-- returns
--   how many were new
local at, new = now(), 0
for n, notice in ipairs(notices) do
  if redis.call('HSETNX', HOOKS[n], notice .. ' attempts', '0') == 1 then
    redis.call('ZADD', OUTBOX, whole(at), notice)
    new = new + 1
  end
end
return new
