-- Returns the work due for the clock, and records that a clock ticks.
--
-- keys
--   chores deadlines ended leases step_deadlines ticks timers
-- args
--   most       of each
--   retention  us
--   tree       whose clock ticks
--   duty       ms for which a tree takes the shared chores; '' when it does not ask for them
-- returns
--   time, lapsed, timers, deadlines, step deadlines, ended, 1 when this tree has the shared chores
local most = tonumber(most)
local at = now()
local function before(key, limit)
  return redis.call('ZRANGEBYSCORE', key, '-inf', whole(limit), 'LIMIT', 0, most)
end
-- Do not extend the duty: a tree whose chores fail must pass them to the others.
local shared, ended = 0, {}
if duty ~= '' and (redis.call('SET', CHORES, tree, 'NX', 'PX', duty) or redis.call('GET', CHORES) == tree) then
  shared, ended = 1, before(ENDED, at - tonumber(retention))
end
local found = {whole(at), before(LEASES, at - 1), before(TIMERS, at), before(DEADLINES, at), before(STEP_DEADLINES, at),
  ended, shared}
redis.call('ZADD', TICKS, whole(at), tree)
redis.call('ZREMRANGEBYSCORE', TICKS, '-inf', whole(at - 3600e6))
return found
