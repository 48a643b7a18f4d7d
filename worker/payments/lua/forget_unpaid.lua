-- Trims an unpaid execution that ended before its work began: drops its input and lets its contract expire at its
-- deadline, as after a refused payment. It no longer counts as ahead of others.
--
-- keys
--   money record contract(contract) unpaid unpaid_new unpaid_bytes verifying express
-- args
--   id
-- returns
--   reference of the input's file, or ''
local state, started, ends_by, file = unpack(get('state', 'first_started', 'ends_by', 'input_ref'))
local paid, entry = unpack(redis.call('HMGET', MONEY, 'paid', 'unpaid'))
if not state or not TERMINAL[state] then return '' end
redis.call('ZREM', VERIFYING, id)
redis.call('LREM', EXPRESS, -1, id)
if started or paid then return '' end
redis.call('HSET', RECORD, 'input', 'null', 'input_ref', '', 'context', '')
if entry then
  unpaid_release(entry)
  redis.call('HDEL', MONEY, 'unpaid')
end
redis.call('PEXPIRE', CONTRACT, math.max(1, math.floor((tonumber(ends_by) - now()) / 1000)))
return file or ''
