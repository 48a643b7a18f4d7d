-- Opens a connection. One that the same consumer still has is ended; one that its process parted from goes on.
-- KEYS   epochs, parted, consumers of the agent or runner, connection, mailbox of the one that the caller found
--        under this consumer (or of the new one)
-- ARGV   epoch, consumer, lease in us, epoch that was found or '', field of the parted, kind, name
-- Result {'new'}, {'adopted', epoch} or {'other', epoch} (another one was found: ask again with its keys)
local EPOCHS, PARTED, CONSUMERS, CONNECTION = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local epoch, consumer, lease, found, field = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local at = now()
typed('ZCARD', EPOCHS, CONSUMERS)
typed('HLEN', PARTED, CONNECTION)
typed('LLEN', KEYS[5])
local before = redis.call('HGET', PARTED, field)
if before and alive(EPOCHS, before, at) then
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
  cut(EPOCHS, old, KEYS[5])
end
redis.call('HSET', CONNECTION, 'kind', ARGV[6], 'name', ARGV[7], 'consumer', consumer)
redis.call('ZADD', EPOCHS, whole(at + lease), epoch)
redis.call('ZADD', CONSUMERS, 0, consumer .. '\0' .. epoch)
return {'new'}
