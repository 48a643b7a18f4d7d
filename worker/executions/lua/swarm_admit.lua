-- Whether a kernel's new execution may begin; if so, keeps a place for it until it has ended.
-- It leaves one process of the lane free for others; a lane's only process it may use while nobody else does.
-- The id is kept too, so that the same request, sent several times at once, gets one place and one id.
-- KEYS   its idempotency key, its reservation, the places held in the lane, the kernel's day, what waits in the lane,
--        takers of the lane, ticks
-- ARGV   id, kernel, executions a day (0: not counted), percent of the places, how long ago a taker must have signed (us),
--        silence after which the clock counts as stopped (us), when the task expires (us, 0: never),
--        '1' when the lane has processes of ours, how many of them run what is not the swarm's
-- Result {'known', id}, {'admitted', id, at}, {'expired'}, {'spent', seconds until the next day}, {'stopped'}, {'nobody'},
--        or {'full', at, member, since, ...} with the places that are held
local id, kernel, most, share = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local PLACES = KEYS[3]
local known = redis.call('GET', KEYS[1])
if known then return {'known', known} end
local at = now()
local again = redis.call('GET', KEYS[2])
if again then return {'admitted', again, whole(at)} end
local expires = tonumber(ARGV[7])
if expires > 0 and expires <= at then return {'expired'} end
local tick = redis.call('ZREVRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2]
if not tick or at - tick > tonumber(ARGV[6]) then return {'stopped'} end

local today = math.floor(at / 86400e6)
local day, used = unpack(redis.call('HMGET', KEYS[4], 'day', 'used'))
used = tonumber(day) == today and tonumber(used) or 0
if most > 0 and used >= most then return {'spent', whole((today + 1) * 86400 - math.floor(at / 1e6))} end

if ARGV[8] == '1' then
  local takers = redis.call('ZCOUNT', KEYS[6], whole(at - tonumber(ARGV[5])), '+inf')
  if takers == 0 then return {'nobody'} end
  local held = redis.call('ZRANGE', PLACES, 0, -1, 'WITHSCORES')
  local open, own = #held / 2, 0
  for i = 1, #held, 2 do
    if string.sub(held[i], 38) == kernel then own = own + 1 end
  end
  local all = math.max(1, takers - 1)
  if open + tonumber(ARGV[9]) >= all or own >= math.max(1, math.floor(all * share / 100)) or redis.call('LLEN', KEYS[5]) > open then
    return {'full', whole(at), unpack(held)}
  end
  redis.call('ZADD', PLACES, whole(at), id .. ' ' .. kernel)
end
if most > 0 then redis.call('HSET', KEYS[4], 'day', whole(today), 'used', whole(used + 1)) end
redis.call('SET', KEYS[2], id, 'PX', 60000)
return {'admitted', id, whole(at)}
