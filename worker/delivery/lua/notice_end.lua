-- What became of an attempt, and when the next one is due.
-- KEYS   outbox, journal of the execution, failing hosts
-- ARGV   notice, next attempt (us) or '' for none, line for the journal, host, 'ok', 'gone', 'failed' or 'dropped',
--        number of the webhook, most lines, how long a failing host may be left alone before its count begins anew (us)
-- Result since when (us) the host has been failing, or '0'
local at = now()
local told = whole(at) .. ' ' .. ARGV[3]
local count = redis.call('HINCRBY', KEYS[2], ARGV[1] .. ' lines', 1)
if count <= tonumber(ARGV[7]) then redis.call('HSET', KEYS[2], ARGV[1] .. ' line ' .. whole(count), told) end
redis.call('HSET', KEYS[2], ARGV[1] .. ' last', told)
if ARGV[2] == '' then redis.call('ZREM', KEYS[1], ARGV[1]) else redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1]) end
if ARGV[5] == 'dropped' then return '0' end
if ARGV[5] == 'gone' then redis.call('HSET', KEYS[2], 'gone ' .. ARGV[6], whole(at)) end
if ARGV[5] ~= 'failed' then
  redis.call('HDEL', KEYS[3], ARGV[4])
  return '0'
end
-- since when it fails, when it last did, how often in between
local since, last, failures = string.match(redis.call('HGET', KEYS[3], ARGV[4]) or '', '^(%d+) (%d+) (%d+)$')
if not since or at - tonumber(last) > tonumber(ARGV[8]) then since, failures = whole(at), '0' end
redis.call('HSET', KEYS[3], ARGV[4], since .. ' ' .. whole(at) .. ' ' .. whole(tonumber(failures) + 1))
return since
