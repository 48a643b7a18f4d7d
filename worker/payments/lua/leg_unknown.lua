-- A leg's call ended without a certain answer: schedules the identical call again.
--
-- keys
--   money=hash journal legs
-- args
--   id
--   number
--   kind        'refund' or 'fee'
--   token
--   cause
--   tx          transaction to look for, or ''
--   delay_list  us, separated by spaces
-- answers
--   again  delay in us
--   gone
local p = number .. ' ' .. kind .. ' '
local at = now()
local state, holder, amount = unpack(redis.call('HMGET', MONEY, p .. 'state', p .. 'token', p .. 'amount'))
if state ~= 'settling' and state ~= 'unknown' then return {'gone'} end
-- Counted over all its ordinals: a new signature does not make a facilitator more reliable.
local failures = redis.call('HINCRBY', MONEY, p .. 'failures', 1)
local delay = nth_delay(delay_list, failures)
redis.call('HSET', MONEY, p .. 'unknown', '1', p .. 'cause', cause)
if tx ~= '' then redis.call('HSET', MONEY, p .. 'hash', tx) end
if state == 'settling' then
  redis.call('HSET', MONEY, p .. 'state', 'unknown')
  book(id, at, kind .. '_unknown', number, amount, cause)
end
if holder == token then
  redis.call('HSET', MONEY, p .. 'lease', '0')
  redis.call('ZADD', LEGS, whole(at + delay), kind .. ' ' .. id .. ' ' .. number)
end
return {'again', whole(delay)}
