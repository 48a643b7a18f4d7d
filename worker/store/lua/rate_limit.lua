-- Takes one place in a sliding window, or refuses without counting.
-- The log keeps a call for the longest window requested of it, so that two rules with different windows can share
-- it. That length is a member of the log itself, with a negative score.
--
--
-- keys
--   rate=zset
-- args
--   most    calls in the window
--   window  us
--   call    its id; sent again, it is not counted again
-- returns
--   1 counted, 0 refused
local at = now()
local window = tonumber(window)
local longest = math.max(window, -(tonumber(redis.call('ZSCORE', RATE, 'longest')) or 0))

redis.call('ZREMRANGEBYSCORE', RATE, 0, whole(at - longest))
if redis.call('ZSCORE', RATE, call) then return 1 end
if redis.call('ZCOUNT', RATE, '(' .. whole(at - window), '+inf') >= tonumber(most) then return 0 end
redis.call('ZADD', RATE, whole(at), call, whole(-longest), 'longest')
redis.call('PEXPIRE', RATE, whole(math.ceil(longest / 1000)))
return 1
