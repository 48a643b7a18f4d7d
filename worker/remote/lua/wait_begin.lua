-- A local function waits for a signal. A recorded answer or an earlier signal answers at once; otherwise the
-- execution blocks and its process is free.
--
-- keys
--   log record steps by_state.running by_state.blocked leases step_deadlines timers
-- hook keys
--   money
-- args
--   id
--   fence
--   key          of the wait
--   kind         signal type
--   limit        us
--   margin       time that a settlement needs after a run, us
--   accepted     payload of intent.accepted
--   blocked      of execution.blocked
--   resumed      of execution.resumed
--   expired      the same for the limit
--   most_events
--   most_bytes
-- answers
--   answered  payload of signal.received, the same as stored where the event has none
--   expired
--   blocked
--   mismatch
--   full
--   lost
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
if not fits(3, #accepted + #blocked + #resumed, most_events, most_bytes) then return {'full'} end
redis.call('HSET', STEPS, 'wait-type ' .. key, kind)
local took, n = tonumber(redis.call('HGET', STEPS, 'took ' .. kind) or 0), 0
for seq in string.gmatch(redis.call('HGET', STEPS, 'signals ' .. kind) or '', '%d+') do
  if n == took then
    redis.call('HSET', STEPS, 'wait ' .. key, seq)
    redis.call('HINCRBY', STEPS, 'took ' .. kind, 1)
    local intent = emit(at, 'intent.accepted', accepted)
    emit(at, 'execution.resumed', resumed, nil, intent, intent)
    wake()
    return {'answered', from_log(seq)}
  end
  n = n + 1
end
-- After the wait there must be time for a whole run, and for settling the payment afterwards.
local last = math.min(at + tonumber(limit), tonumber(ends_by) - tonumber(run_limit))
last = math.min(last, (money_ends() or math.huge) - tonumber(margin) - tonumber(run_limit))
local intent = emit(at, 'intent.accepted', accepted)
if last <= at then
  redis.call('HSET', STEPS, 'wait ' .. key, 'expired')
  wake()
  return {'expired'}
end
stand_still(id, at, 'signal', kind, blocked, intent)
redis.call('HSET', RECORD, 'wait_key', key, 'wait_until', whole(last), 'wait_expired', expired)
redis.call('ZADD', TIMERS, whole(last), id)
wake()
return {'blocked'}
