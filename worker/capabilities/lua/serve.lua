-- Reports a tree of processes as alive and, with a description, what it can run.
--
-- keys
--   catalogs trees
-- args
--   tree
--   description  JSON, or '' where it is stored already
-- returns
--   1, or 0 when its description is not in the store
local at = now()
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', TREES, '-inf', whole(at - 3600e6))) do
  -- The tree itself is back: its machine may have been suspended.
  if gone ~= tree then
    redis.call('ZREM', TREES, gone)
    redis.call('HDEL', CATALOGS, gone)
  end
end
redis.call('ZADD', TREES, whole(at), tree)
if description ~= '' then redis.call('HSET', CATALOGS, tree, whole(at) .. ' ' .. description) end
return redis.call('HEXISTS', CATALOGS, tree)
