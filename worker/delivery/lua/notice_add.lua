-- Puts notices into the outbox, each once.
-- KEYS   outbox, journal of the execution
-- ARGV   notice, notice, ...
-- Result how many were new
local at, new = now(), 0
for _, notice in ipairs(ARGV) do
  if redis.call('HSETNX', KEYS[2], notice .. ' attempts', '0') == 1 then
    redis.call('ZADD', KEYS[1], whole(at), notice)
    new = new + 1
  end
end
return new
