-- What waits for the clock, and a sign that one ticks.
-- KEYS   leases, timers, deadlines, step deadlines, queued, ended, ticks
-- ARGV   most of each, age in us after which a queued record is looked for, retention in us, name of the ticking tree
-- Result {at, lapsed, timers, deadlines, step deadlines, queued, ended}
local most = tonumber(ARGV[1])
local at = now()
local function before(key, limit)
  return redis.call('ZRANGEBYSCORE', key, '-inf', whole(limit), 'LIMIT', 0, most)
end
local found = {whole(at), before(KEYS[1], at - 1), before(KEYS[2], at), before(KEYS[3], at), before(KEYS[4], at),
  before(KEYS[5], at - tonumber(ARGV[2])), before(KEYS[6], at - tonumber(ARGV[3]))}
redis.call('ZADD', KEYS[7], whole(at), ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[7], '-inf', whole(at - 3600e6))
return found
