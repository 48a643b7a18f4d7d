-- Put after _common.lua, in front of every script that deals with remote agents and runners.
-- A connection is an epoch. It lives while its score in the sorted set of epochs, the end of its lease, lies in
-- the future; score 0 says that it was ended and that what hung on it is still to be seen to.

-- The store does not roll back: a key of a wrong type stops a script here, before its first write.
local function typed(length, ...)
  for _, key in ipairs({...}) do redis.call(length, key) end
end

local function alive(EPOCHS, epoch, at)
  local until_ = epoch and redis.call('ZSCORE', EPOCHS, epoch)
  return until_ and tonumber(until_) > at
end

-- Ends a connection: nothing is sent to it any more, and its stream is woken to see that.
local function cut(EPOCHS, epoch, MAIL)
  redis.call('ZADD', EPOCHS, 0, epoch)
  redis.call('DEL', MAIL)
  redis.call('PUBLISH', MAIL, '')
end

-- Puts a message into a living connection's mailbox. A full one is not shortened: the connection ends.
local function post(EPOCHS, epoch, MAIL, at, most, message)
  if not alive(EPOCHS, epoch, at) then return false end
  if redis.call('RPUSH', MAIL, message) > tonumber(most) then
    cut(EPOCHS, epoch, MAIL)
    return false
  end
  redis.call('PUBLISH', MAIL, '')
  return true
end

-- The next member after `last` in the order of names, and round again, for which `fits` holds. Whoever had its turn
-- and came back with another epoch is behind the others like anybody.
local function next_after(key, last, fits)
  local from = last and '(' .. string.sub(last, 1, -38) .. '\1' or '-'
  for round = 1, 2 do
    for _, member in ipairs(redis.call('ZRANGEBYLEX', key, from, '+')) do
      if fits(member) then return member end
    end
    if from == '-' then return nil end
    from = '-'
  end
end

local function epoch_of(member) return string.sub(member, -36) end

-- An execution of a remote agent goes back into its line and gets another session from whoever takes it.
local function line_up(id, WAITING)
  redis.call('ZADD', WAITING, redis.call('HGET', RECORD, 'created'), id)
  redis.call('ZREM', TIMERS, id)
  redis.call('ZREM', QUEUED, id)
end

-- Takes a running or blocked execution from its agent. The run that follows begins again, with its history.
local function take_back(id, from, at, reason, correlation)
  cancel_steps(id, at, 'agent disconnected', correlation)
  redis.call('ZREM', LEASES, id)
  redis.call('HSET', RECORD, 'lease', '0', 'due', '0', 'session', '', 'epoch', '')
  redis.call('HDEL', RECORD, 'blocked_on', 'ref', 'left')
  move(id, from, 'pending', at)
  emit(at, 'execution.reset', '{"reason":"' .. reason .. '","from_status":"running"}', nil, correlation, correlation)
  count('worker_resets_total', 'reason', reason)
end

-- The execution stands still until somebody answers; its time to run stands still with it.
local function block(id, at, on, ref, payload, cause)
  local run_until = redis.call('HGET', RECORD, 'run_until')
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

-- A call that waits for a runner. It is noted in the execution too, so that it can be taken back with it.
local function add_job(id, step, job, JOBS, ready)
  local before, past = unpack(redis.call('HMGET', STEPS, step .. ' job', step .. ' past'))
  if before then redis.call('HSET', STEPS, step .. ' past', (past or '') .. ' ' .. before) end
  redis.call('HSET', STEPS, step .. ' job', job, 'jobs', '1')
  redis.call('ZADD', JOBS, whole(ready), id .. ' ' .. step)
end

-- Seconds from a step's creation to its success, as a histogram of the tool.
local BUCKETS = {5e3, 1e4, 25e3, 5e4, 1e5, 25e4, 5e5, 1e6, 25e5, 5e6, 1e7}
local MOST_TOOLS = 200

local function time_step(step, at)
  local tool, created = unpack(redis.call('HMGET', STEPS, step .. ' tool', step .. ' created'))
  local took = at - tonumber(created)
  if redis.call('HEXISTS', STATS, 'step count ' .. tool) == 0
      and redis.call('HINCRBY', STATS, 'step tools', 1) > MOST_TOOLS then
    redis.call('HINCRBY', STATS, 'step tools', -1)
    tool = '(other)'
  end
  redis.call('HINCRBY', STATS, 'step count ' .. tool, 1)
  redis.call('HINCRBY', STATS, 'step us ' .. tool, whole(took))
  for _, limit in ipairs(BUCKETS) do
    if took <= limit then
      redis.call('HINCRBY', STATS, 'step le ' .. whole(limit) .. ' ' .. tool, 1)
      break
    end
  end
end

local function count_intent(kind, decision)
  redis.call('HINCRBY', STATS, 'rebuno_intents_total{type="' .. kind .. '",decision="' .. decision .. '"}', 1)
end

-- Why a session may not act, or nil. `caller` is the only agent that the caller may act for, or ''.
local function refusal(session, caller, EPOCHS, at)
  local state, held, epoch, agent, sealed_by, on = unpack(get('state', 'session', 'epoch', 'agent', 'sealed_by',
    'blocked_on'))
  if not state or held ~= session or session == '' then return {'unknown'} end
  if caller ~= '' and caller ~= agent then return {'foreign'} end
  if not alive(EPOCHS, epoch, at) then return {'expired'} end
  if TERMINAL[state] then return {'terminal', state} end
  if sealed_by then return {'sealed'} end
  if state == 'blocked' then return {'blocked', on} end
end

-- An intent with a key is answered once: the same key again gets the first answer, for this session.
local function answered(key, digest)
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

-- Signals are kept by type. Every run of a remote agent uses them from the first on, because it begins again.
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

-- A local execution stands still: its process lets go of it. The next run has a new fence, but is no attempt more.
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
