-- The idle connection whose turn it is to run a tool.
-- KEYS   epochs, turns, busy, offers of the tool
-- ARGV   the tool's field in turns
-- Result its member in the list, or nil
local at = now()
return next_after(KEYS[4], redis.call('HGET', KEYS[2], ARGV[1]), function(member)
  local epoch = epoch_of(member)
  if not alive(KEYS[1], epoch, at) then return false end
  local has = redis.call('HGET', KEYS[3], epoch)
  return not has or tonumber(string.match(has, '^%d+')) <= at
end)
