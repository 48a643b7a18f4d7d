-- Leave to compare the chain's transfers with the ledger, when it is time: the server was started again since the
-- last comparison, or that was long ago. For a while after a start calls that were open at the crash may still land.
-- KEYS   what was compared
-- ARGV   time between comparisons (us), the same soon after a start, how long that is (us), lease (us)
-- Result {'wait'} or {'go', run id, block compared last or '', when the server started by its own clock (us)}
local info = redis.call('INFO', 'server')
local run = string.match(info, 'run_id:(%w+)') or 'unnamed'
local up = tonumber(string.match(info, 'uptime_in_seconds:(%d+)') or '0') * 1e6
local known, last, block, held = unpack(redis.call('HMGET', KEYS[1], 'run_id', 'at', 'block', 'lease'))
local at = now()
if tonumber(held or 0) > at then return {'wait'} end
local interval = tonumber(up < tonumber(ARGV[3]) and ARGV[2] or ARGV[1])
if known == run and at < tonumber(last or 0) + interval then return {'wait'} end
redis.call('HSET', KEYS[1], 'lease', whole(at + tonumber(ARGV[4])))
local time = redis.call('TIME')
return {'go', run, block or '', whole(time[1] * 1e6 + time[2] - up)}
