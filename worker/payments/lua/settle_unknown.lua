-- A call ended without a certain answer: the money may have moved, so schedules the identical call again.
--
-- keys
--   log money record journal open_payments
-- args
--   id
--   number
--   token
--   cause
--   tx          transaction to look for, or ''
--   delay_list  us, separated by spaces
--   maybe       '1' when this very call may have moved the money
-- answers
--   again  delay in us
--   gone
local at = now()
local state, holder, calls = paid_with(number, 'state', 'token', 'calls')
if state ~= 'settling' and state ~= 'unknown' then return {'gone'} end
local delay = nth_delay(delay_list, tonumber(calls))
redis.call('HSET', MONEY, number .. ' unknown', '1', number .. ' cause', cause)
if maybe == '1' then redis.call('HSET', MONEY, number .. ' maybe', '1') end
if tx ~= '' then redis.call('HSET', MONEY, number .. ' hash', tx) end
becomes_unknown(id, at, number, cause)
if holder == token then redis.call('HSET', MONEY, number .. ' lease', '0', number .. ' token', '', number .. ' again', whole(at + delay)) end
redis.call('ZADD', OPEN_PAYMENTS, whole(at + delay), id)
return {'again', whole(delay)}
