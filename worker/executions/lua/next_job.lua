-- The job that has waited longest for one of a runner's tools.
-- KEYS   epochs, busy, jobs of each of its tools
-- ARGV   epoch
-- Result {job, number of its tool}, or {}
local at = now()
if not alive(KEYS[1], ARGV[1], at) then return {} end
local has = redis.call('HGET', KEYS[2], ARGV[1])
if has and tonumber(string.match(has, '^%d+')) > at then return {} end
local oldest, number, since = nil, nil, math.huge
for i = 3, #KEYS do
  local found = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', whole(at), 'WITHSCORES', 'LIMIT', 0, 1)
  if found[1] and tonumber(found[2]) < since then
    oldest, number, since = found[1], i - 2, tonumber(found[2])
  end
end
return oldest and {oldest, tostring(number)} or {}
