-- Records how far the comparison came; with a life it is done.
--
-- keys
--   life
-- args
--   block    compared last, or ''
--   done     life that it was done for, or ''
--   lease    us from now
--   seen     time of the last block compared, us, or '' where there is no chain
--   longest  us after its claim that any authorization may still land
-- returns
--   1
local at = now()
if block ~= '' then redis.call('HSET', LIFE, 'block', block) end
if done ~= '' then
  redis.call('HSET', LIFE, 'done', done, 'at', whole(at), 'to', seen == '' and '0' or seen)
  local hold, pending = unpack(redis.call('HMGET', LIFE, 'hold', 'pending'))
  local over = seen == '' or tonumber(seen) >= tonumber(hold or 0) + tonumber(longest)
  if over then redis.call('HSET', LIFE, 'hold', '0', 'pending', '') end
end
redis.call('HSET', LIFE, 'lease', whole(at + tonumber(lease)))
return 1
