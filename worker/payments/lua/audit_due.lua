-- Takes the settlements whose audit is due. Taken ones are not due again for a while, so that only one clock asks.
--
-- keys
--   audits
-- args
--   most
--   pause  us for which what is taken is not due again
-- returns
--   `execution number` for each
local at = now()
local due = redis.call('ZRANGEBYSCORE', AUDITS, '-inf', whole(at), 'LIMIT', 0, most)
for _, each in ipairs(due) do redis.call('ZADD', AUDITS, whole(at + tonumber(pause)), each) end
return due
