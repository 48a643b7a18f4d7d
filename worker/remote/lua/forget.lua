-- Removes what is left of an ended connection that no longer holds anything.
--
-- keys
--   connection(epoch) held(epoch) mail(epoch) consumers(kind,name) offers(tools)* busy epochs turns
-- args
--   epoch
--   member   in the offers
--   turn_of  its agent's field in turns or ''
--   fields*  the field in turns of each tool
-- returns
--   1, or 0 while the connection still holds something
if alive(epoch, now()) or redis.call('HLEN', HELD) > 0 then return 0 end
-- The turn matters only while there are consumers.
local function take_turn(key, field)
  if field ~= '' and redis.call('EXISTS', key) == 0 then redis.call('HDEL', TURNS, field) end
end
for i, key in ipairs(OFFERS) do
  redis.call('ZREM', key, member)
  take_turn(key, fields[i])
end
take_turn(CONSUMERS, turn_of)
redis.call('DEL', CONNECTION, MAIL)
redis.call('HDEL', BUSY, epoch)
redis.call('ZREM', EPOCHS, epoch)
return 1
