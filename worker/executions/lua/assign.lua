-- Gives the first execution of an agent's line to one of its connections: a new fence, an attempt, a session.
-- KEYS   transition(id), epochs, turns, consumers, waiting, mailbox, held
-- ARGV   id, consumer with epoch, session, consumer as JSON, the agent's field in turns, most messages of a mailbox,
--        how long a consumer that ran it before gets to let go of it (us), message or '' when it is to be read where
--        it is kept, '1' when the caller only guesses whose turn it is
-- Result {'assigned', at, how many still wait, whose turn may be next}, {'later'} (that consumer is told
--        first), {'line'} (another one is first), {'full'} (its mailbox has no room for work now), {'turn'} (it is
--        another's turn), {'lost'} (the connection has ended) or {'gone'}
local id, member, session = ARGV[1], ARGV[2], ARGV[3]
local EPOCHS, TURNS, CONSUMERS, WAITING, MAIL, HELD = KEYS[25], KEYS[26], KEYS[27], KEYS[28], KEYS[29], KEYS[30]
typed('ZCARD', EPOCHS, CONSUMERS, WAITING)
typed('HLEN', TURNS, HELD)
typed('LLEN', MAIL)
local epoch, at = epoch_of(member), now()
local consumer = string.sub(member, 1, -38)
local state, phase, due, ends_by, limit, sla_by, before, told =
  unpack(get('state', 'phase', 'due', 'ends_by', 'run_limit', 'sla_by', 'worker', 'told'))
if state ~= 'pending' or phase ~= 'working' then
  redis.call('ZREM', WAITING, id)
  return {'gone'}
end
if redis.call('ZRANGE', WAITING, 0, 0)[1] ~= id then return {'line'} end
ends_by = math.min(tonumber(ends_by), tonumber(sla_by or 'inf'))
if tonumber(due or 0) > at or ends_by <= at then
  redis.call('ZREM', WAITING, id)
  redis.call('ZADD', TIMERS, whole(math.max(at, tonumber(due or 0))), id)
  return {'gone'}
end
-- Nobody begins with what could no longer be settled after it.
local number = outlived(at)
if number then
  redis.call('ZREM', WAITING, id)
  let_go(id, at, number)
  return {'gone'}
end
local function next_turn(last)
  return next_after(CONSUMERS, last, function(other) return alive(EPOCHS, epoch_of(other), at) end)
end

if ARGV[9] == '1' and next_turn(redis.call('HGET', TURNS, ARGV[5])) ~= member then return {'turn'} end
if not alive(EPOCHS, epoch, at) or not redis.call('ZSCORE', CONSUMERS, member) then return {'lost'} end
-- Work fills only half of a mailbox: the rest is for news of it, which cannot wait for a place.
if redis.call('LLEN', MAIL) * 2 >= tonumber(ARGV[6]) then
  redis.call('HSET', TURNS, ARGV[5], member)
  return {'full'}
end
-- The same process may still be at work on its former run, whose end must not be taken for this one's.
if before == consumer and told ~= epoch then
  if not post(EPOCHS, epoch, MAIL, at, ARGV[6], 'execution.cancelled {"execution_id":"' .. id .. '"}') then
    return {'lost'}
  end
  redis.call('HSET', RECORD, 'told', epoch, 'due', whole(at + tonumber(ARGV[7])))
  redis.call('ZREM', WAITING, id)
  redis.call('ZADD', TIMERS, whole(at + tonumber(ARGV[7])), id)
  return {'later'}
end
local message = ARGV[8] ~= '' and ARGV[8] or '@assigned ' .. id .. ' ' .. session
if not post(EPOCHS, epoch, MAIL, at, ARGV[6], message) then return {'lost'} end
local run_until = whole(math.min(at + tonumber(limit), ends_by))
redis.call('HINCRBY', RECORD, 'fence', 1)
redis.call('HINCRBY', RECORD, 'attempt', 1)
redis.call('HSET', RECORD, 'lease', run_until, 'started', whole(at), 'run_until', run_until, 'worker', consumer,
  'session', session, 'epoch', epoch)
redis.call('HSETNX', RECORD, 'first_started', whole(at))
redis.call('HDEL', STEPS, 'cut')
move(id, 'pending', 'running', at)
redis.call('ZREM', WAITING, id)
redis.call('ZREM', QUEUED, id)
redis.call('ZREM', TIMERS, id)
redis.call('ZADD', LEASES, run_until, id)
redis.call('HSET', HELD, id, session)
redis.call('HSET', TURNS, ARGV[5], member)
emit(at, 'execution.started', '{"session_id":"' .. session .. '","consumer_id":' .. ARGV[4] .. '}')
wake()
local alone = ARGV[9] ~= '1' or redis.call('ZCARD', CONSUMERS) == 1
return {'assigned', whole(at), redis.call('ZCARD', WAITING), alone and member or next_turn(member)}
