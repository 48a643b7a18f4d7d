-- Binds money that arrived to the only contract it can be for, until that contract's seeker sends the input.
--
-- keys
--   contract(contract) payment(key) contracts found found_about journal unpaid unpaid_new unpaid_bytes
-- args
--   transfer  its name
--   line      what the list says of it
--   moved     its time, us
--   most      listed
--   contract  its reference
--   amount
--   key       of the payment
--   payload
--   tx        transaction
-- answers
--   waits
--   known
--   taken  look again
if settled_place(transfer) or redis.call('GET', PAYMENT) then return {'known'} end
local state, execution, bound, entry = unpack(redis.call('HMGET', CONTRACT, 'state', 'execution', 'found', 'unpaid'))
if state ~= 'signed' or execution or bound then return {'taken'} end
redis.call('HSET', CONTRACT, 'found', payload, 'found_key', key, 'found_tx', tx)
redis.call('PERSIST', CONTRACT)
redis.call('ZREM', CONTRACTS, CONTRACT)
if entry then unpaid_release(entry) end
list_found(transfer, line, moved, most, 'contract ' .. contract)
book(contract, now(), 'found', '0', amount, tx)
return {'waits'}
