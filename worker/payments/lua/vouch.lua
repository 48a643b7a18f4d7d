-- A process that writes money reports that it runs, and what it remembers: the life it knew and its count of writes.
-- When every process that ran when the old life ended finds all that it remembers, nothing was lost.
--
-- keys
--   life writers
-- args
--   name     of the process
--   known    life that it remembers, or ''
--   counted  writes that it remembers
-- returns
--   life, writes, 'kept' or 'lost' where the life it remembers is over, else ''
local found = ''
local at = now()
local life = look_at_life(at).life
local before, writes, writes_before, silent, pending, began, hold, hold_before = unpack(redis.call('HMGET', LIFE,
  'life_before', 'writes', 'writes_before', 'silent', 'pending', 'began', 'hold', 'hold_before'))
if known ~= '' and known ~= life then
  if known == before and tonumber(counted) <= tonumber(writes_before) then
    local left = {}
    for each in string.gmatch(silent, '%S+') do
      if each ~= name then left[#left + 1] = each end
    end
    silent = table.concat(left, ' ')
    redis.call('HSET', LIFE, 'silent', silent)
    found = 'kept'
  else
    -- This process remembers something that the store has forgotten.
    found = 'lost'
    pending = ''
    redis.call('HSET', LIFE, 'pending', '', 'hold', whole(math.max(tonumber(hold), tonumber(began))))
  end
end
if pending == '1' and silent == '' and at >= tonumber(began) + GRACE then
  redis.call('HSET', LIFE, 'pending', '', 'hold', hold_before)
end
redis.call('ZREMRANGEBYSCORE', WRITERS, '-inf', whole(at - 6 * HEARD_OF))
redis.call('ZADD', WRITERS, whole(at), name)
return {life, writes or '0', found}
