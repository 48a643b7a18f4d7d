-- Returns the first execution in an agent's queue, and the connection whose turn is next.
--
-- keys
--   consumers(kind,agent) waiting(agent) epochs turns
-- args
--   turn_of  the agent's field in turns
-- returns
--   id, consumer with epoch; shorter when there is none
local at = now()
local first = redis.call('ZRANGE', WAITING, 0, 0)[1]
if not first then return {} end
local member = next_after(CONSUMERS, redis.call('HGET', TURNS, turn_of), function(member)
  return alive(epoch_of(member), at)
end)
return {first, member}
