-- Cleans up after an end: notifies the agent unless it ended the execution itself, and takes jobs back.
--
-- keys
--   record steps mail(session) held(session) waiting(agent) jobs(tools)* epochs timers
-- args
--   id
--   session
--   most     messages of a mailbox
--   message
--   before   number of messages before it
--   lines*   those messages, then the job of each tool
-- returns
--   1
local epoch, by = unpack(get('epoch', 'sealed_by'))
local before = tonumber(before)
if by ~= session and redis.call('HEXISTS', HELD, id) == 1 then
  local at = now()
  for i = 1, before do post(epoch, MAIL, at, most, lines[i]) end
  post(epoch, MAIL, at, most, message)
end
redis.call('HDEL', HELD, id)
redis.call('ZREM', WAITING, id)
for i, key in ipairs(JOBS) do redis.call('ZREM', key, lines[before + i]) end
redis.call('HDEL', STEPS, 'jobs')
redis.call('ZREM', TIMERS, id)
return 1
