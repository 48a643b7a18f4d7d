-- Records a signal and applies its decision: it answers a wait, or approves or denies a step.
--
-- keys
--   log record steps mail(session_seen) jobs(tool) by_state.pending by_state.running by_state.blocked epochs
--   express leases queued step_deadlines timers
-- args
--   id
--   session_seen  the session that the caller found
--   ref_seen      the blocked step or signal type that it found
--   kind          type of the signal
--   received      payload of signal.received
--   resumed       payload of execution.resumed when it answers a wait
--   verdict       'yes' or 'no' when it can decide, else ''
--   about         the step it decides about, '*' for the one that waits
--   failed        payload of step.failed when denied
--   value         the same as stored
--   message       approval.resolved
--   job           for a runner
--   timeout       of the step, us
--   most          messages of a mailbox
--   most_events
--   most_bytes
--   stored        the payload where the event has none
--   away          us that an execution without a connected agent waits for one
-- answers
--   ok        the step if a runner is needed or '', lane if it must be queued or ''
--   mismatch  blocked steps
--   moved     the execution has changed since
--   full
--   terminal  state
--   unknown
local state, session, ref, on, epoch, lane, key = unpack(get('state', 'session', 'ref', 'blocked_on', 'epoch', 'lane',
  'wait_key'))
if not state then return {'unknown'} end
if TERMINAL[state] then return {'terminal', state} end
local remote = lane == 'remote'
if (remote and session or '') ~= session_seen or (ref or '') ~= ref_seen then return {'moved'} end
local decides = on == 'approval' and verdict ~= ''
local step = about == '*' and ref or about
if decides and not awaited(step) or decides and string.find(step, ' ', 1, true) then return {'mismatch', ref} end
local answers = on == 'signal' and ref == kind
if not fits((decides or answers) and 6 or 1, #received + #stored, most_events, most_bytes) then return {'full'} end
local at = now()
local seq = emit(at, 'signal.received', received)
local wanted = ''
if stored ~= '' then redis.call('HSET', STEPS, 'signal ' .. whole(seq), stored) end
if not decides then keep_signal(kind, seq) end

local function tell_signal()
  return post(epoch, MAIL, at, most, '@signal ' .. id .. ' ' .. whole(seq))
end

-- No agent is connected: the execution runs without a session until one comes, or until the time limit.
local function hand_on()
  if alive(epoch, at) then return end
  redis.call('HSET', RECORD, 'session', '', 'epoch', '', 'unclaimed', whole(at + tonumber(away)))
  redis.call('ZADD', TIMERS, whole(at), id)
end

-- Whether other steps also await approval. They keep the execution blocked.
local function others_wait()
  local left = {}
  for other in string.gmatch(ref, '%S+') do
    if other ~= step then left[#left + 1] = other end
  end
  if #left > 0 then redis.call('HSET', RECORD, 'ref', table.concat(left, ' ')) end
  return #left > 0
end

local function decide()
  local kept, to_runner = unpack(redis.call('HMGET', STEPS, step .. ' kept', step .. ' remote'))
  local told = remote and alive(epoch, at)
  if verdict == 'no' then
    close_step(id, step, 'failed')
    redis.call('HSET', STEPS, step .. ' value', value, step .. ' approval', 'denied')
    if remote and not told then redis.call('HSET', STEPS, 'denied ' .. kept, value) end
    emit(at, 'step.failed', failed, step, seq, seq)
  elseif remote and not told then
    redis.call('HINCRBY', STEPS, kept, 1)
  else
    local deadline, job = at + tonumber(timeout), to_runner and job or ''
    -- A local step without a runner begins when its function reaches it again.
    redis.call('HSET', STEPS, step .. ' fence', 'approved', step .. ' approval', 'granted')
    if remote or to_runner then due_by(id, step, deadline) end
    if to_runner then
      add_job(id, step, job, JOBS, at)
      wanted = step
    end
    local payload = '{"runner_id":"","job_id":' .. quoted(job) .. ',"deadline":"' .. iso(deadline) .. '"}'
    emit(at, 'step.dispatched', payload, step, seq, seq)
  end
  local resumed = '{"reason":"approval ' .. (verdict == 'yes' and 'granted' or 'denied') .. '"}'
  if not remote then return run_again(id, at, lane, resumed, seq) end
  local still = others_wait()
  if not still then unblock(id, at, resumed, seq) end
  if told then
    post(epoch, MAIL, at, most, message)
    tell_signal()
  end
  if not still then hand_on() end
end

if decides then
  decide()
elseif answers and not remote then
  redis.call('HSET', STEPS, 'wait ' .. key, whole(seq))
  redis.call('HINCRBY', STEPS, 'took ' .. kind, 1)
  run_again(id, at, lane, resumed, seq)
elseif answers then
  unused_signal(kind)
  unblock(id, at, resumed, seq)
  tell_signal()
  hand_on()
elseif remote and session ~= '' then
  tell_signal()
end
wake()
local queued = not remote and (decides or answers) and lane or ''
return {'ok', wanted, queued}
