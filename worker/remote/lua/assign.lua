-- Assigns the first execution in an agent's queue to one of its connections: a new fence, an attempt, a session.
--
-- keys
--   log record steps consumers(kind,agent) waiting(agent) mail(epoch) held(epoch) by_state epochs hooked leases queued
--   stats step_deadlines timers turns
-- hook keys
--   deadlines journal money open_payments sums wallets
-- args
--   id
--   member   the consumer with its epoch
--   session
--   name     the consumer as JSON
--   turn_of  the agent's field in turns
--   most     messages of a mailbox
--   grace    us that a consumer that ran it before has to release it
--   message  '' to read it from where it is stored
--   guess    '1' when the caller only guesses whose turn it is
-- answers
--   assigned  time, how many still wait, whose turn may be next
--   later     that consumer must be notified first
--   not_first another execution is first
--   full      the mailbox has no room for more work now
--   turn      it is another connection's turn
--   lost      the connection has ended
--   gone
local epoch, at = epoch_of(member), now()
local consumer = string.sub(member, 1, -38)
local state, phase, due, latest, limit, sla_by, before, told, fence, attempt, first_started, created, hooks, margin =
  unpack(get('state', 'phase', 'due', 'ends_by', 'run_limit', 'sla_by', 'worker', 'told', 'fence', 'attempt',
    'first_started', 'created', 'hooks', 'settle_margin'))
local money, consumers = money_before(), redis.call('ZRANGE', CONSUMERS, 0, 1)
local last, mails = redis.call('HGET', TURNS, turn_of), redis.call('LLEN', MAIL)
if (state ~= 'pending' and not unclaimed()) or phase ~= 'working' then
  redis.call('ZREM', WAITING, id)
  return {'gone'}
end
if redis.call('ZRANGE', WAITING, 0, 0)[1] ~= id then return {'not_first'} end
if state == 'running' then
  if not alive(epoch, at) then return {'lost'} end
  claim_back(id, at)
  attempt = attempt - 1
  wake()
end
local ends_by = math.min(tonumber(latest), tonumber(sla_by or 'inf'))
if tonumber(due or 0) > at or ends_by <= at then
  redis.call('ZREM', WAITING, id)
  redis.call('ZADD', TIMERS, whole(math.max(at, tonumber(due or 0))), id)
  return {'gone'}
end
-- Do not start work that could no longer be settled afterwards.
if not money_may_begin(id, at, money, limit, sla_by, margin, latest) then
  redis.call('ZREM', WAITING, id)
  return {'gone'}
end
local function lives(other) return alive(epoch_of(other), at) end
local function next_turn(last)
  local only = not consumers[2] and consumers[1]
  if only then return lives(only) and only or nil end
  return next_after(CONSUMERS, last, lives)
end

if guess == '1' then
  if next_turn(last) ~= member then return {'turn'} end
elseif not alive(epoch, at) or not redis.call('ZSCORE', CONSUMERS, member) then
  return {'lost'}
end
-- Work fills at most half of a mailbox: the rest is for news about it, which cannot wait for space.
if mails * 2 >= tonumber(most) then
  redis.call('HSET', TURNS, turn_of, member)
  return {'full'}
end
-- The same process may still be working on its previous run, whose end must not be taken for this one's.
if before == consumer and told ~= epoch then
  if not post(epoch, MAIL, at, most, 'execution.cancelled {"execution_id":' .. quoted(id) .. '}') then
    return {'lost'}
  end
  redis.call('HSET', RECORD, 'told', epoch, 'due', whole(at + tonumber(grace)))
  redis.call('ZREM', WAITING, id)
  redis.call('ZADD', TIMERS, whole(at + tonumber(grace)), id)
  return {'later'}
end
local message = message ~= '' and message or '@assigned ' .. id .. ' ' .. session
if not post_living(epoch, MAIL, most, message) then return {'lost'} end
local run_until = whole(math.min(at + tonumber(limit), ends_by))
move_from(created, id, 'pending', 'running', at, 'fence', whole(fence + 1), 'attempt', whole(attempt + 1),
  'lease', run_until, 'started', whole(at), 'first_started', first_started or whole(at), 'run_until', run_until,
  'worker', consumer, 'session', session, 'epoch', epoch)
if fence ~= '0' then redis.call('HDEL', STEPS, 'cut') end
if (hooks or '') ~= '' then redis.call('ZADD', HOOKED, whole(at), id) end
redis.call('ZREM', WAITING, id)
redis.call('ZREM', QUEUED, id)
redis.call('ZREM', TIMERS, id)
redis.call('ZADD', LEASES, run_until, id)
redis.call('HSET', HELD, id, session)
redis.call('HSET', TURNS, turn_of, member)
emit(at, 'execution.started', '{"session_id":' .. quoted(session) .. ',"consumer_id":' .. name .. '}')
wake()
local alone = guess ~= '1' or not consumers[2]
return {'assigned', whole(at), redis.call('ZCARD', WAITING), alone and member or next_turn(member)}
