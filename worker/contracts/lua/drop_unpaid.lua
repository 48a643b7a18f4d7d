-- Drops an unpaid contract of a wallet that never paid, to make room for another.
--
-- keys
--   contract(contract) contracts unpaid unpaid_new unpaid_bytes
-- args
--   entry  in the quota
-- returns
--   1
local held = redis.call('HGET', CONTRACT, 'unpaid')
unpaid_release(entry)
-- A claimed contract has no expiry: it stays, because its payment may be good. It no longer counts; otherwise
-- contracts verified by an older process would fill the quota until their deadlines.
if held == entry and redis.call('PTTL', CONTRACT) >= 0 then
  redis.call('ZREM', CONTRACTS, CONTRACT)
  redis.call('DEL', CONTRACT)
end
return 1
