-- Moves an execution to its place in a list to which another program has appended it.
--
-- keys
--   waiting_list=list money wallets
-- args
--   id
-- returns
--   nothing
local number = redis.call('HGET', MONEY, 'current')
if number and (paid_with(number, 'rechecked')) then
  -- It has waited already, until its payment was verified again.
  if redis.call('LREM', WAITING_LIST, -1, id) > 0 then redis.call('LPUSH', WAITING_LIST, id) end
else
  go_ahead(WAITING_LIST, id, now(), redis.call('HGET', WALLETS, 'newcomers'))
end
return ''
