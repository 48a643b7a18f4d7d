-- A local function waits for a signal: answered from the record when it was before, or by a signal that came before;
-- else the execution stands still, and its process is free.
-- KEYS   transition(id)
-- ARGV   1 id, 2 fence, 3 key of the wait, 4 signal type, 5 limit (us), 6 time a settlement needs after a run (us),
--        7 payload of intent.accepted, 8 of execution.blocked, 9 of execution.resumed, 10 the same for the limit,
--        11 most events, 12 most bytes
-- Result {'answered', payload of signal.received, the same as stored where the event has none}, {'expired'}, {'blocked'}, {'mismatch'}, {'full'} or {'lost'}
local id, fence, key, kind = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local at = now()
if not holds(fence, at) then return {'lost'} end
local run_limit, ends_by = unpack(get('run_limit', 'ends_by'))

local function from_log(seq)
  local line = redis.call('LINDEX', LOG, tonumber(seq) - 1)
  local payload = string.match(line, '^%S+ %S+ %S+ %S+ %S+ (.*)$')
  return payload, redis.call('HGET', STEPS, 'signal ' .. seq) or ''
end

local known, type_of = unpack(redis.call('HMGET', STEPS, 'wait ' .. key, 'wait-type ' .. key))
if type_of and type_of ~= kind then return {'mismatch'} end
if known == 'expired' then return {'expired'} end
if known then return {'answered', from_log(known)} end
if not fits(3, #ARGV[7] + #ARGV[8] + #ARGV[9], ARGV[11], ARGV[12]) then return {'full'} end
redis.call('HSET', STEPS, 'wait-type ' .. key, kind)
local took, n = tonumber(redis.call('HGET', STEPS, 'took ' .. kind) or 0), 0
for seq in string.gmatch(redis.call('HGET', STEPS, 'signals ' .. kind) or '', '%d+') do
  if n == took then
    redis.call('HSET', STEPS, 'wait ' .. key, seq)
    redis.call('HINCRBY', STEPS, 'took ' .. kind, 1)
    local intent = emit(at, 'intent.accepted', ARGV[7])
    emit(at, 'execution.resumed', ARGV[9], nil, intent, intent)
    wake()
    return {'answered', from_log(seq)}
  end
  n = n + 1
end
-- After the wait there must be time for a whole run, and for the payment to be settled after it.
local last = math.min(at + tonumber(ARGV[5]), tonumber(ends_by) - tonumber(run_limit))
local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
if number and not paid then
  local valid_before = tonumber((paid_with(number, 'valid_before')))
  last = math.min(last, valid_before * 1e6 - tonumber(ARGV[6]) - tonumber(run_limit))
end
local intent = emit(at, 'intent.accepted', ARGV[7])
if last <= at then
  redis.call('HSET', STEPS, 'wait ' .. key, 'expired')
  wake()
  return {'expired'}
end
stand_still(id, at, 'signal', kind, ARGV[8], intent)
redis.call('HSET', RECORD, 'wait_key', key, 'wait_until', whole(last), 'wait_expired', ARGV[10])
redis.call('ZADD', TIMERS, whole(last), id)
wake()
return {'blocked'}
