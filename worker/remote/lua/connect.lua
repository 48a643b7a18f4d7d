-- Opens a connection. Ends the same consumer's existing one, or adopts one that its exiting process handed over.
--
-- keys
--   consumers(kind,name) connection(epoch) mail(mailbox) epochs parted
-- args
--   epoch
--   consumer
--   lease     us
--   found     the epoch that the caller found under this consumer, or ''
--   field     of the parted
--   kind
--   name
-- answers
--   new
--   adopted  epoch
--   other    epoch that was found; ask again with its mailbox
local lease = tonumber(lease)
local at = now()
local before = redis.call('HGET', PARTED, field)
if before and alive(before, at) then
  redis.call('HDEL', PARTED, field)
  redis.call('ZADD', EPOCHS, whole(at + lease), before)
  redis.call('ZADD', CONSUMERS, 0, consumer .. '\0' .. before)
  return {'adopted', before}
end
local member = redis.call('ZRANGEBYLEX', CONSUMERS, '[' .. consumer .. '\0', '[' .. consumer .. '\1', 'LIMIT', 0, 1)[1]
local old = member and epoch_of(member) or ''
if old == epoch then return {'new'} end
if old ~= found then return {'other', old} end
if old ~= '' then
  redis.call('ZREM', CONSUMERS, member)
  cut(old, MAIL)
end
redis.call('HSET', CONNECTION, 'kind', kind, 'name', name, 'consumer', consumer)
redis.call('ZADD', EPOCHS, whole(at + lease), epoch)
redis.call('ZADD', CONSUMERS, 0, consumer .. '\0' .. epoch)
return {'new'}
