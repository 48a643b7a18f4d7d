-- Takes one place in a sliding window, or refuses without counting.
-- The log keeps a call as long as the longest window that was asked of it, so that two rules with
-- different windows can share it. That length is a member of the log itself, with a negative score.
--
-- KEYS[1]  the log: a sorted set of call ids by time (microseconds)
-- KEYS[2]  the clock's offset in microseconds; given in tests only
-- ARGV[1]  how many calls may lie in the window
-- ARGV[2]  the window, microseconds
-- ARGV[3]  id of this call; sent again with the same id, it is not counted again
-- result   1 counted, 0 refused

local function digits(number)
    return string.format('%.0f', number)
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if KEYS[2] then
    now = now + (tonumber(redis.call('GET', KEYS[2])) or 0)
end
local window = tonumber(ARGV[2])
local longest = math.max(window, -(tonumber(redis.call('ZSCORE', KEYS[1], 'longest')) or 0))

redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, digits(now - longest))
if redis.call('ZSCORE', KEYS[1], ARGV[3]) then
    return 1
end
if redis.call('ZCOUNT', KEYS[1], '(' .. digits(now - window), '+inf') >= tonumber(ARGV[1]) then
    return 0
end
redis.call('ZADD', KEYS[1], digits(now), ARGV[3], digits(-longest), 'longest')
redis.call('PEXPIRE', KEYS[1], digits(math.ceil(longest / 1000)))
return 1
