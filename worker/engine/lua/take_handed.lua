-- Grants the lease on the execution that was just moved from the express lane to the list of a waiting process. It is
-- sent behind the BLMOVE that moves it, so a process that waits gets a lease in one round trip and with one sync.
--
-- Only the store knows which execution that is: the keys of one are built here, and nowhere else. All of them are read
-- before the first write, because their types are not checked.
--
-- keys
--   handed(session) handed_before=handed(before) log record by_state.pending by_state.running hooked leases queued
--   stats
-- hook keys
--   deadlines journal money open_payments sums wallets
-- args
--   id       '', so that the names of its keys lack only the id
--   lease    us
--   worker   who takes it
--   session
--   before   session of the wait before this one, or ''
-- answers
--   taken  time, field, value, ...
--   last   its id: its last attempt would be lost with a process that waits but is frozen or cut off
--   gone   nothing was moved, or it may not begin
local handed = redis.call('LINDEX', HANDED, 0) or ''
id, LOG, RECORD = handed, LOG .. handed, RECORD .. handed
money_of(handed)
local record, money = waiting_work()
local attempt, attempts = unpack(get('attempt', 'attempts'))
redis.call('LLEN', LOG)
-- The list stays until the next wait: if the process dies, its parent sees there whose lease to hand back.
redis.call('DEL', HANDED_BEFORE)
if id == '' then return {'gone'} end
redis.call('PEXPIRE', HANDED, whole(lease / 1000))
if attempt and attempt + 1 >= tonumber(attempts) then return {'last', id} end
local granted = grant(id, tonumber(lease), worker, session, record, money)
return granted and {'taken', unpack(granted)} or {'gone'}
