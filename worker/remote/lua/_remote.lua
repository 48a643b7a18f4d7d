-- Shared by the scripts that deal with remote agents and runners.
-- A connection is an epoch. It is alive while its score in the sorted set of epochs, the end of its lease, is in the
-- future; score 0 means that it has ended and that its sessions and jobs still need cleanup.

local function alive(epoch, at)
  local until_ = epoch and redis.call('ZSCORE', EPOCHS, epoch)
  return until_ and tonumber(until_) > at
end

-- Ends a connection: it receives nothing more, and its stream is woken to notice that.
local function cut(epoch, key)
  redis.call('ZADD', EPOCHS, 0, epoch)
  redis.call('DEL', key)
  redis.call('PUBLISH', key, '')
end

-- Puts a message into a living connection's mailbox. A full mailbox is not trimmed: the connection ends. The message
-- is published with its place, so that its process need not read it.
local function post(epoch, key, at, most, message)
  return alive(epoch, at) and post_living(epoch, key, most, message)
end

-- The same, for a connection that is known to live.
local function post_living(epoch, key, most, message)
  local length = redis.call('RPUSH', key, message)
  if length > tonumber(most) then
    cut(epoch, key)
    return false
  end
  redis.call('PUBLISH', key, length .. ' ' .. message)
  return true
end

-- The next member after `last` by name, wrapping around, for which `suits` holds. A consumer that had its turn and
-- reconnected with another epoch queues behind the others as usual.
local function next_after(key, last, suits)
  local from = last and '(' .. string.sub(last, 1, -38) .. '\1' or '-'
  for round = 1, 2 do
    for _, member in ipairs(redis.call('ZRANGEBYLEX', key, from, '+')) do
      if suits(member) then return member end
    end
    if from == '-' then return nil end
    from = '-'
  end
end

local function epoch_of(member) return string.sub(member, -36) end

-- Returns a remote agent's execution to the agent's queue; it gets a new session when assigned.
local function line_up(id, key)
  redis.call('ZADD', key, redis.call('HGET', RECORD, 'created'), id)
  redis.call('ZREM', TIMERS, id)
  redis.call('ZREM', QUEUED, id)
end

-- Takes a running execution from its agent. The next run starts over, with the history.
local function take_back(id, from, at, reason, correlation)
  cancel_steps(id, at, 'agent disconnected', correlation)
  redis.call('ZREM', LEASES, id)
  redis.call('HSET', RECORD, 'lease', '0', 'due', '0', 'session', '', 'epoch', '')
  redis.call('HDEL', RECORD, 'blocked_on', 'ref', 'left', 'unclaimed')
  move(id, from, 'pending', at)
  emit(at, 'execution.reset', '{"reason":' .. quoted(reason) .. ',"from_status":"running"}', nil, correlation, correlation)
  count('worker_resets_total', 'reason', reason)
end

-- An execution that resumed while no agent was connected runs without a session for a limited time. The next agent
-- to connect gets it; nothing else takes it back before that time is over. Resuming used no attempt.
local function unclaimed()
  local state, until_ = unpack(get('state', 'unclaimed'))
  return state == 'running' and until_ and tonumber(until_)
end

local function claim_back(id, at)
  redis.call('HINCRBY', RECORD, 'attempt', -1)
  take_back(id, 'running', at, 'recovery', 0)
end

-- Blocks the execution until a reply arrives; its run-time limit is paused.
local function block(id, at, on, ref, payload, cause)
  local state, before, run_until = unpack(get('state', 'ref', 'run_until'))
  if state == 'blocked' then
    -- Several steps may await approval at once: ref names all of them.
    redis.call('HSET', RECORD, 'ref', before .. ' ' .. ref, 'updated', whole(at))
    emit(at, 'execution.blocked', payload, nil, cause, cause)
    return
  end
  redis.call('HSET', RECORD, 'blocked_on', on, 'ref', ref, 'left', whole(tonumber(run_until) - at), 'lease', '0')
  redis.call('ZREM', LEASES, id)
  move(id, 'running', 'blocked', at)
  emit(at, 'execution.blocked', payload, nil, cause, cause)
end

local function unblock(id, at, payload, cause)
  local left, ends_by = unpack(get('left', 'ends_by'))
  local run_until = whole(math.min(at + tonumber(left), tonumber(ends_by)))
  redis.call('HDEL', RECORD, 'blocked_on', 'ref', 'left')
  redis.call('HSET', RECORD, 'run_until', run_until, 'lease', run_until)
  redis.call('ZADD', LEASES, run_until, id)
  move(id, 'blocked', 'running', at)
  emit(at, 'execution.resumed', payload, nil, cause, cause)
end

-- Steps

local function open_step(step)
  redis.call('HSET', STEPS, 'open', (redis.call('HGET', STEPS, 'open') or '') .. ' ' .. step)
end

local function due_by(id, step, deadline)
  redis.call('ZADD', STEP_DEADLINES, whole(deadline), id .. ' ' .. step)
end

-- A call that waits for a runner. It is also recorded in the execution, so that both are taken back together.
local function add_job(id, step, job, key, ready)
  local before, past = unpack(redis.call('HMGET', STEPS, step .. ' job', step .. ' past'))
  if before then redis.call('HSET', STEPS, step .. ' past', (past or '') .. ' ' .. before) end
  redis.call('HSET', STEPS, step .. ' job', job, 'jobs', '1')
  redis.call('ZADD', key, whole(ready), id .. ' ' .. step)
end

-- Counts the time from a step's creation to its success in the tool's histogram.
local BUCKETS = {5e3, 1e4, 25e3, 5e4, 1e5, 25e4, 5e5, 1e6, 25e5, 5e6, 1e7}
local MOST_TOOLS = 200

local function timed(tool) return redis.call('HEXISTS', STATS, 'step count ' .. tool) == 1 end

-- `known`: what timed() returned.
local function time_step(tool, created, at, known)
  if not known and redis.call('HINCRBY', STATS, 'step tools', 1) > MOST_TOOLS then
    redis.call('HINCRBY', STATS, 'step tools', -1)
    tool = '(other)'
  end
  observe('step', tool, at - tonumber(created), BUCKETS)
end

local function count_intent(kind, decision)
  redis.call('HINCRBY', STATS, 'rebuno_intents_total{type="' .. kind .. '",decision="' .. decision .. '"}', 1)
end

-- Whether a step awaits approval. It has not begun.
local function awaited(step)
  local on, ref = unpack(get('blocked_on', 'ref'))
  return on == 'approval' and string.find(' ' .. ref .. ' ', ' ' .. step .. ' ', 1, true) ~= nil
end

-- While one step awaits approval, its agent may call other tools or give up.
local function goes_on(no)
  return not no or (no[1] == 'blocked' and no[2] == 'approval')
end

local function refused(session, caller, at, state, held, epoch, agent, sealed_by, on)
  if not state or held ~= session or session == '' then return {'unknown'} end
  if caller ~= '' and caller ~= agent then return {'foreign'} end
  if not alive(epoch, at) then return {'expired'} end
  if TERMINAL[state] then return {'terminal', state} end
  if sealed_by then return {'sealed'} end
  if state == 'blocked' then return {'blocked', on} end
end

-- Why a session may not act, or nil. `caller` is the only agent that the caller may act for, or ''. Then the session's
-- connection, and further fields of the record, as they are named.
local function refusal(session, caller, at, ...)
  local record = get('state', 'session', 'epoch', 'agent', 'sealed_by', 'blocked_on', ...)
  return refused(session, caller, at, unpack(record, 1, 6)), record[3], unpack(record, 7)
end

-- An intent with a key is answered once: within this session the same key gets the first answer again. `no`: why the
-- session may not act, which a stranger hears before that answer.
local function answered(no, key, digest)
  if no and (no[1] == 'unknown' or no[1] == 'foreign' or no[1] == 'expired') then return no end
  if key == '' then return end
  local known = redis.call('HGET', STEPS, 'intent ' .. redis.call('HGET', RECORD, 'fence') .. ' ' .. key)
  if not known then return end
  if string.sub(known, 1, #digest) ~= digest then return {'mismatch'} end
  return {'again', string.sub(known, #digest + 1)}
end

local function answer(key, digest, response)
  if key == '' then return end
  redis.call('HSET', STEPS, 'intent ' .. redis.call('HGET', RECORD, 'fence') .. ' ' .. key, digest .. response)
end

-- Signals are stored by type. Every run of a remote agent consumes them from the first one, because it starts over.
local function keep_signal(kind, seq)
  local kept = redis.call('HGET', STEPS, 'signals ' .. kind)
  redis.call('HSET', STEPS, 'signals ' .. kind, (kept and kept .. ' ' or '') .. whole(seq))
end

local function unused_signal(kind)
  local field = 'took ' .. redis.call('HGET', RECORD, 'fence') .. ' ' .. kind
  local took, n = tonumber(redis.call('HGET', STEPS, field) or 0), 0
  for seq in string.gmatch(redis.call('HGET', STEPS, 'signals ' .. kind) or '', '%d+') do
    if n == took then
      redis.call('HINCRBY', STEPS, field, 1)
      return seq
    end
    n = n + 1
  end
end

-- Blocks a local execution: its process releases it. The next run gets a new fence, but no new attempt.
local function stand_still(id, at, on, ref, payload, cause)
  for _, step in ipairs(open_steps()) do
    redis.call('ZREM', STEP_DEADLINES, id .. ' ' .. step)
  end
  redis.call('ZREM', LEASES, id)
  redis.call('HSET', RECORD, 'blocked_on', on, 'ref', ref, 'lease', '0')
  redis.call('HINCRBY', RECORD, 'attempt', -1)
  move(id, 'running', 'blocked', at)
  emit(at, 'execution.blocked', payload, nil, cause, cause)
end
