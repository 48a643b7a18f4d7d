-- Ends a connection: it gets no more work or messages. Its sessions and jobs are cleaned up afterwards.
--
-- keys
--   consumers(kind,name) mail(epoch) epochs parted
-- args
--   epoch
--   consumer
--   field     of the parted
--   lapsed    '1' to end it only if its lease has expired
-- returns
--   1, or 0 when it stays open
if lapsed == '1' and alive(epoch, now()) then return 0 end
redis.call('ZREM', CONSUMERS, consumer .. '\0' .. epoch)
if redis.call('HGET', PARTED, field) == epoch then redis.call('HDEL', PARTED, field) end
cut(epoch, MAIL)
return 1
