-- Who waits first for an agent, and which of its connections is next.
-- KEYS   epochs, turns, consumers, waiting
-- ARGV   the agent's field in turns
-- Result {id, consumer with epoch}; shorter when there is none
local at = now()
local first = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
if not first then return {} end
local member = next_after(KEYS[3], redis.call('HGET', KEYS[2], ARGV[1]), function(member)
  return alive(KEYS[1], epoch_of(member), at)
end)
return {first, member}
