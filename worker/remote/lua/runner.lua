-- Returns the idle connection whose turn it is to run a tool.
--
-- keys
--   offers(tool) busy epochs turns
-- args
--   turn_of  the tool's field in turns
-- returns
--   its member in the offers, or nil
local at = now()
return next_after(OFFERS, redis.call('HGET', TURNS, turn_of), function(member)
  local epoch = epoch_of(member)
  if not alive(epoch, at) then return false end
  local has = redis.call('HGET', BUSY, epoch)
  return not has or tonumber(string.match(has, '^%d+')) <= at
end)
