-- Writes down a signal, and does what it decides: it answers a wait, or approves or denies a step.
-- KEYS   transition(id), epochs, mailbox, jobs of the tool that waits for approval
-- ARGV   1 id, 2 session and 3 blocked step or signal type that the caller found, 4 type, 5 payload of signal.received,
--        6 payload of execution.resumed when it answers a wait, 7 'yes' or 'no' when it can decide, else '',
--        8 step it decides about, '*' for the one that is blocked, 9 payload of step.failed when denied, 10 the same as
--        stored, 11 message approval.resolved, 12 job for a runner, 13 time-out of the step (us),
--        14 most messages of a mailbox, 15 most events, 16 most bytes, 17 payload as stored where the event has none
-- Result {'ok', the step when a runner is wanted or '', lane when it is to be queued or ''}, {'mismatch', blocked step},
--        {'moved'} (something else was found), {'full'}, {'terminal', state} or {'unknown'}
local id, kind = ARGV[1], ARGV[4]
typed('ZCARD', KEYS[25], KEYS[27])
typed('LLEN', KEYS[26])
local state, session, ref, on, epoch, lane, key = unpack(get('state', 'session', 'ref', 'blocked_on', 'epoch', 'lane',
  'wait_key'))
if not state then return {'unknown'} end
if TERMINAL[state] then return {'terminal', state} end
local remote = lane == 'remote'
if (remote and session or '') ~= ARGV[2] or (ref or '') ~= ARGV[3] then return {'moved'} end
local decides = on == 'approval' and ARGV[7] ~= ''
if decides and ARGV[8] ~= '*' and ARGV[8] ~= ref then return {'mismatch', ref} end
local answers = on == 'signal' and ref == kind
if not fits((decides or answers) and 6 or 1, #ARGV[5] + #ARGV[17], ARGV[15], ARGV[16]) then return {'full'} end
local at = now()
local seq = emit(at, 'signal.received', ARGV[5])
local wanted = ''
if ARGV[17] ~= '' then redis.call('HSET', STEPS, 'signal ' .. whole(seq), ARGV[17]) end
if not decides then keep_signal(kind, seq) end

local function tell_signal()
  return post(KEYS[25], epoch, KEYS[26], at, ARGV[14], '@signal ' .. id .. ' ' .. whole(seq))
end

-- Nobody is there to go on: whoever is the next runs it from its beginning.
local function hand_on()
  if alive(KEYS[25], epoch, at) then return end
  take_back(id, 'running', at, 'recovery', seq)
  queue(id, at, lane)
end

local function decide()
  local step = ref
  local kept, to_runner = unpack(redis.call('HMGET', STEPS, step .. ' kept', step .. ' remote'))
  local told = remote and alive(KEYS[25], epoch, at)
  if ARGV[7] == 'no' then
    close_step(id, step, 'failed')
    redis.call('HSET', STEPS, step .. ' value', ARGV[10], step .. ' approval', 'denied')
    if remote and not told then redis.call('HSET', STEPS, 'denied ' .. kept, ARGV[10]) end
    emit(at, 'step.failed', ARGV[9], step, seq, seq)
  elseif remote and not told then
    redis.call('HINCRBY', STEPS, kept, 1)
  else
    local deadline, job = at + tonumber(ARGV[13]), to_runner and ARGV[12] or ''
    -- A local step without a runner begins when its function comes to it again.
    redis.call('HSET', STEPS, step .. ' fence', 'approved', step .. ' approval', 'granted')
    if remote or to_runner then due_by(id, step, deadline) end
    if to_runner then
      add_job(id, step, ARGV[12], KEYS[27], at)
      wanted = step
    end
    local payload = '{"runner_id":"","job_id":"' .. job .. '","deadline":"' .. iso(deadline) .. '"}'
    emit(at, 'step.dispatched', payload, step, seq, seq)
  end
  local resumed = '{"reason":"approval ' .. (ARGV[7] == 'yes' and 'granted' or 'denied') .. '"}'
  if not remote then return run_again(id, at, lane, resumed, seq) end
  unblock(id, at, resumed, seq)
  if told then
    post(KEYS[25], epoch, KEYS[26], at, ARGV[14], ARGV[11])
    tell_signal()
  end
  hand_on()
end

if decides then
  decide()
elseif answers and not remote then
  redis.call('HSET', STEPS, 'wait ' .. key, whole(seq))
  redis.call('HINCRBY', STEPS, 'took ' .. kind, 1)
  run_again(id, at, lane, ARGV[6], seq)
elseif answers then
  unused_signal(kind)
  unblock(id, at, ARGV[6], seq)
  tell_signal()
  hand_on()
elseif remote and session ~= '' then
  tell_signal()
end
wake()
local queued = not remote and (decides or answers) and lane or ''
return {'ok', wanted, queued}
