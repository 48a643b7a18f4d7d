-- An execution loses the connection of its agent.
-- KEYS   transition(id), waiting, held
-- ARGV   id, epoch, payload of execution.failed for tries used up, most events
-- Result 'waits', 'failed', 'stays' (blocked, or only money is open) or 'gone'
local id, epoch = ARGV[1], ARGV[2]
typed('ZCARD', KEYS[25])
typed('HLEN', KEYS[26])
local state, held, session, sealed_by, attempt, attempts, contract =
  unpack(get('state', 'epoch', 'session', 'sealed_by', 'attempt', 'attempts', 'contract'))
redis.call('HDEL', KEYS[26], id)
if not state or TERMINAL[state] or held ~= epoch or sealed_by then return 'gone' end
local at = now()
local correlation = emit(at, 'agent.timeout', '{"session_id":"' .. session .. '"}')
if state == 'blocked' then
  redis.call('HSET', RECORD, 'session', '', 'epoch', '')
  wake()
  return 'stays'
end
-- Work that is paid for must come to an end; other work may be tried for as long as it lives, or its log has room.
if (contract and tonumber(attempt) >= tonumber(attempts)) or redis.call('LLEN', LOG) >= tonumber(ARGV[4]) then
  redis.call('HSET', RECORD, 'error', ARGV[3], 'session', '', 'epoch', '')
  cancel_steps(id, at, 'agent disconnected', correlation)
  finish(id, at, state, 'failed', ARGV[3], correlation)
  return 'failed'
end
take_back(id, state, at, 'agent_disconnect', correlation)
line_up(id, KEYS[25])
wake()
return 'waits'
