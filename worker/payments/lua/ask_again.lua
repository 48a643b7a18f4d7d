-- A question has no certain answer yet: schedules when the clock asks next.
--
-- keys
--   money open_payments
-- args
--   id
--   number
--   question    what was asked
--   delay_list  us, separated by spaces
-- returns
--   the delay in us
local tries = redis.call('HINCRBY', MONEY, number .. ' ' .. question .. ' tries', 1)
local delay = nth_delay(delay_list, tries)
redis.call('ZADD', OPEN_PAYMENTS, 'XX', whole(now() + delay), id)
return whole(delay)
