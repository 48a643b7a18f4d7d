-- Returns what the living trees can run; if none is alive, what the one seen last could run.
--
-- keys
--   catalogs trees express_takers=zset queue_takers=zset
-- args
--   silence  us without a sign after which a tree or a process is gone
-- returns
--   '1' if processes of an older release, which name no tree, take work too; then each description with its time
local since = whole(now() - tonumber(silence))
local function older(takers)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', takers, since, '+inf')) do
    local tree = string.match(name, '^(.+)%-%a+%-%d+$')
    if tree and not redis.call('ZSCORE', TREES, tree) then return true end
  end
end
local living = redis.call('ZRANGEBYSCORE', TREES, since, '+inf')
if #living == 0 then living = redis.call('ZREVRANGE', TREES, 0, 0) end
local found = {(older(EXPRESS_TAKERS) or older(QUEUE_TAKERS)) and '1' or ''}
for _, tree in ipairs(living) do found[#found + 1] = redis.call('HGET', CATALOGS, tree) or nil end
return found
