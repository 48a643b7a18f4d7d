-- Schedules another check of a leg that was refused for insufficient funds.
--
-- keys
--   money=hash legs
-- args
--   id
--   number
--   kind        'refund' or 'fee'
--   delay_list  us, separated by spaces
-- answers
--   again  delay in us
--   gone   it is no longer refused
local p = number .. ' ' .. kind .. ' '
if redis.call('HGET', MONEY, p .. 'state') ~= 'refused' then return {'gone'} end
local failures = redis.call('HINCRBY', MONEY, p .. 'failures', 1)
local delay = nth_delay(delay_list, failures)
redis.call('ZADD', LEGS, whole(now() + delay), kind .. ' ' .. id .. ' ' .. number)
return {'again', whole(delay)}
