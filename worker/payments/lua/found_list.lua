-- Lists money that arrived and matches nothing.
--
-- keys
--   payment(key) found found_about
-- args
--   transfer  its name
--   line      what the list says of it
--   moved     its time, us
--   most      listed
--   misfit    '1' where a payment has its key, but does not fit it
-- answers
--   listed
--   known
if redis.call('HEXISTS', FOUND_ABOUT, transfer) == 1 then return {'known'} end
if redis.call('GET', PAYMENT) and misfit ~= '1' then return {'known'} end
list_found(transfer, line, moved, most, 'listed')
return {'listed'}
