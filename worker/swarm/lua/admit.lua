-- Decides whether a kernel's new execution may begin; if so, reserves a place for it until it ends.
-- Leaves one process of the lane free for others; uses a lane's only process while no other work does.
-- Stores the id too, so that the same request, sent several times at once, gets one place and one id. Also stores
-- the task's: a task re-sent under new ids while its first execution is open gets that execution.
--
-- keys
--   idempotency(scope,key) swarm_at(scope,key) swarm_places(lane) swarm_day(kernel) lane_queue=any takers(lane)
--   ticks swarm_task(scope,task) swarm_waits(scope,key)
-- args
--   id
--   kernel
--   per_day  executions a day, 0: not counted
--   share    percent of the places
--   silence  us within which a taker must have sent a heartbeat
--   stopped  us of silence after which the clock counts as stopped
--   expires  when the task expires, us, 0: never
--   bounded  '1' when the lane has processes of ours
--   others   how many of them run non-swarm work
--   over     the task's execution that is known to have ended
--   wait     ms that a request may wait
--   task_ms  ms that a task's id is kept
-- answers
--   known     id
--   admitted  id, time
--   open      id, ms that its id is still kept
--   expired
--   spent     seconds until the next day
--   stopped
--   nobody
--   full      time, when it was first told to wait, then member and since of the places that are held
local most, share = tonumber(per_day), tonumber(share)
local known = redis.call('GET', IDEMPOTENCY)
if known then return {'known', known} end
local at = now()
local again = redis.call('GET', SWARM_AT)
if again then return {'admitted', again, whole(at)} end
local open_now = redis.call('GET', SWARM_TASK)
if open_now and open_now ~= over then return {'open', open_now, redis.call('PTTL', SWARM_TASK)} end
local expires = tonumber(expires)
if expires > 0 and expires <= at then return {'expired'} end
local tick = redis.call('ZREVRANGE', TICKS, 0, 0, 'WITHSCORES')[2]
if not tick or at - tick > tonumber(stopped) then return {'stopped'} end

local today = math.floor(at / 86400e6)
local day, used = unpack(redis.call('HMGET', SWARM_DAY, 'day', 'used'))
used = tonumber(day) == today and tonumber(used) or 0
if most > 0 and used >= most then return {'spent', whole((today + 1) * 86400 - math.floor(at / 1e6))} end

if bounded == '1' then
  local takers = redis.call('ZCOUNT', TAKERS, whole(at - tonumber(silence)), '+inf')
  if takers == 0 then return {'nobody'} end
  local held = redis.call('ZRANGE', SWARM_PLACES, 0, -1, 'WITHSCORES')
  local open, own = #held / 2, 0
  for i = 1, #held, 2 do
    if string.sub(held[i], 38) == kernel then own = own + 1 end
  end
  local all = math.max(1, takers - 1)
  if open + tonumber(others) >= all or own >= math.max(1, math.floor(all * share / 100)) or redis.call('LLEN', LANE_QUEUE) > open then
    redis.call('SET', SWARM_WAITS, whole(at), 'PX', wait, 'NX')
    return {'full', whole(at), redis.call('GET', SWARM_WAITS), unpack(held)}
  end
  redis.call('ZADD', SWARM_PLACES, whole(at), id .. ' ' .. kernel)
end
if most > 0 then redis.call('HSET', SWARM_DAY, 'day', whole(today), 'used', whole(used + 1)) end
redis.call('SET', SWARM_AT, id, 'PX', 60000)
redis.call('SET', SWARM_TASK, id, 'PX', task_ms)
return {'admitted', id, whole(at)}
