-- Records the operator's decision to dismiss found money: it is no longer listed as open.
--
-- keys
--   found found_about
-- args
--   transfer  its name
--   line      what the list says of it
--   moved     its time, us
--   most      listed
-- answers
--   listed
--   known
if settled_place(transfer) then return {'known'} end
list_found(transfer, line, moved, most, 'dismissed')
return {'listed'}
