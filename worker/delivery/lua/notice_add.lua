-- Adds notices to the outbox, each once.
--
-- keys
--   outbox hooks
-- args
--   notices*
-- returns
--   how many were new
local at, new = now(), 0
for _, notice in ipairs(notices) do
  if redis.call('HSETNX', HOOKS, notice .. ' attempts', '0') == 1 then
    redis.call('ZADD', OUTBOX, whole(at), notice)
    new = new + 1
  end
end
return new
