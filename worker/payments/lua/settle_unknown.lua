-- A call ended without a certain answer: the money may have moved, the identical call is made again.
-- KEYS   transition(id)
-- ARGV   id, number, token, cause, transaction to look for or '', delays in us separated by spaces,
--        '1' when this very call may have moved the money
-- Result {delay in us} or {'gone'}
local id, number, token = ARGV[1], ARGV[2], ARGV[3]
local at = now()
local state, holder, calls, amount = paid_with(number, 'state', 'token', 'calls', 'amount')
if state ~= 'settling' and state ~= 'unknown' then return {'gone'} end
local delays = {}
for delay in string.gmatch(ARGV[6], '%d+') do delays[#delays + 1] = tonumber(delay) end
local delay = delays[math.min(tonumber(calls), #delays)]
redis.call('HSET', MONEY, number .. ' unknown', '1', number .. ' cause', ARGV[4])
if ARGV[7] == '1' then redis.call('HSET', MONEY, number .. ' maybe', '1') end
if ARGV[5] ~= '' then redis.call('HSET', MONEY, number .. ' hash', ARGV[5]) end
if state == 'settling' then
  turn(id, at, number, 'unknown', ARGV[4])
  local execution = redis.call('HGET', RECORD, 'state')
  if execution and not TERMINAL[execution] then
    emit(at, 'payment.unknown', '{"number":' .. number .. '}')
    wake()
  end
end
if holder == token then redis.call('HSET', MONEY, number .. ' lease', '0', number .. ' again', whole(at + delay)) end
redis.call('ZADD', OPEN, whole(at + delay), id)
return {whole(delay)}
