-- A connection's process exits. For one lease its sessions and mailbox wait for the consumer to reconnect.
--
-- keys
--   consumers(kind,name) mail(epoch) epochs parted
-- args
--   epoch
--   consumer
--   lease     us
--   field     of the parted
--   written   number of mailbox messages already sent
-- returns
--   1, or 0 when the connection has ended
local at = now()
if not alive(epoch, at) then return 0 end
redis.call('LTRIM', MAIL, written, -1)
redis.call('ZREM', CONSUMERS, consumer .. '\0' .. epoch)
redis.call('HSET', PARTED, field, epoch)
redis.call('ZADD', EPOCHS, whole(at + tonumber(lease)), epoch)
return 1
