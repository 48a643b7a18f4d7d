-- Postpones the audit of a settlement that cannot be judged yet.
--
-- keys
--   money audits journal
-- args
--   id
--   number
--   delay   us
--   hash    that the facilitator names by now, or ''
-- returns
--   1, or 0 when its audit is over
local member = id .. ' ' .. number
local at = now()
local state, proof, amount = paid_with(number, 'state', 'proof', 'amount')
if not redis.call('ZSCORE', AUDITS, member) or state ~= 'settled' or proof then return 0 end
redis.call('ZADD', AUDITS, whole(at + tonumber(delay)), member)
if hash ~= '' then
  redis.call('HSET', MONEY, number .. ' sent_again', hash)
  book(id, at, 'sent_again', number, amount, hash)
end
return 1
