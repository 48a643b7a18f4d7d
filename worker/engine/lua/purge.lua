-- Removes an execution that ended long ago from all keys and indexes.
-- The payment keys still record what was bought and when.
--
-- keys
--   log record steps idempotency(scope,key) contract(contracts)* indexes*=zset payments*=string by_state ended
--   hooked hooks
-- hook keys
--   ledger money
-- args
--   id
--   before    it ended before, us
--   look      'look' to check only
--   numbers*  of its payments, in the order of their keys
-- returns
--   1 when removed, or when it may be

local state, phase, ended = unpack(get('state', 'phase', 'ended'))
if not state then
  redis.call('ZREM', ENDED, id)
  return 0
end
if not TERMINAL[state] or phase ~= 'done' or money_open() or tonumber(ended) > tonumber(before) then return 0 end
if look == 'look' then return 1 end
money_removed(id, numbers, PAYMENTS, state, ended)
if redis.call('GET', IDEMPOTENCY) == id then redis.call('DEL', IDEMPOTENCY) end
redis.call('DEL', HOOKS, unpack(CONTRACT))
for _, key in ipairs(INDEXES) do redis.call('ZREM', key, id) end
redis.call('ZREM', BY_STATE[state], id)
redis.call('ZREM', ENDED, id)
redis.call('ZREM', HOOKED, id)
redis.call('DEL', RECORD, LOG, STEPS)
return 1
