-- Requeues an execution at the end of its lane, for a process that can run it.
--
-- keys
--   record express queued
-- args
--   id
-- returns
--   its lane, or '' when it does not wait any more
local state, phase, lane = unpack(get('state', 'phase', 'lane'))
if state ~= 'pending' or phase ~= 'working' then
  redis.call('ZREM', QUEUED, id)
  return ''
end
redis.call('ZADD', QUEUED, whole(now()), id)
if lane == 'express' and not redis.call('LPOS', EXPRESS, id) then redis.call('RPUSH', EXPRESS, id) end
return lane
