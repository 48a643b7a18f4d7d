-- Renews the leases of a process's connections.
--
-- keys
--   epochs
-- args
--   lease         us
--   connections*  their epochs
-- returns
--   those that have ended in the meantime
local at, gone = now(), {}
for _, epoch in ipairs(connections) do
  if alive(epoch, at) then
    redis.call('ZADD', EPOCHS, whole(at + tonumber(lease)), epoch)
  else
    gone[#gone + 1] = epoch
  end
end
return gone
