-- Starts the next attempt of a parked execution at the seeker's request.
--
-- keys
--   log money record steps express queued timers wallets
-- args
--   id
--   digest     of the body
--   input      JSON
--   input_ref
--   context    what the agent sees of the contract
-- answers
--   queued    lane
--   conflict
--   gone
local state, parked, known, lane, held = unpack(get('state', 'parked', 'digest', 'lane', 'context'))
if state ~= 'pending' or not parked or parked == '' then return {'gone'} end
if known ~= digest and parked ~= 'input' then return {'conflict'} end
local at = now()
-- A refused payment has dropped the input and the context.
local dropped = held == ''
if dropped then redis.call('HSET', RECORD, 'context', context) end
if known ~= digest or dropped then
  redis.call('HSET', RECORD, 'digest', digest, 'input', input, 'input_ref', input_ref)
  redis.call('DEL', STEPS)
  redis.call('HSET', RECORD, 'said', '0', 'marks', '0')
end
local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
if number and not paid then redis.call('HINCRBY', WALLETS, 'parked ' .. paid_with(number, 'payer'), -1) end
redis.call('HSET', RECORD, 'parked', '', 'due', '0', 'updated', whole(at))
queue(id, at, lane)
wake()
return {'queued', lane}
