-- Returns the job that has waited longest for one of a runner's tools.
--
-- keys
--   jobs(tools)* busy epochs
-- args
--   epoch
-- returns
--   job, number of its tool; nothing when there is none
local at = now()
if not alive(epoch, at) then return {} end
local has = redis.call('HGET', BUSY, epoch)
if has and tonumber(string.match(has, '^%d+')) > at then return {} end
local oldest, number, since = nil, nil, math.huge
for i, key in ipairs(JOBS) do
  local found = redis.call('ZRANGEBYSCORE', key, '-inf', whole(at), 'WITHSCORES', 'LIMIT', 0, 1)
  if found[1] and tonumber(found[2]) < since then
    oldest, number, since = found[1], i, tonumber(found[2])
  end
end
return oldest and {oldest, tostring(number)} or {}
