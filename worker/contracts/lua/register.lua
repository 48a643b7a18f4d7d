-- Stores a contract that both parties signed, until it expires. Unpaid ones have a quota of bytes.
--
-- keys
--   contract(contract) contracts draft(contract) drafts unpaid unpaid_new unpaid_bytes wallets
-- args
--   contract    its reference
--   document
--   digest      its hash
--   created     us
--   expires     when an unpaid one is dropped, us
--   draft_life  us that a draft is remembered
--   seeker      wallet
--   size        bytes that it counts
--   own_new     bytes of a wallet that never paid
--   own_paid    bytes of one that has paid
--   all_new     bytes of all wallets that never paid together
--   shelter     us before a new wallet's contract may be dropped for others
--   oldest      number of entries to propose for dropping
-- answers
--   kept
--   known
--   differs
--   full     the wallet's own quota
--   crowded  the quota of all that never paid; entries that may be dropped
local at = now()
local known = redis.call('HGET', CONTRACT, 'hash') or redis.call('GET', DRAFT)
if known and known ~= digest then return {'differs'} end
if redis.call('HLEN', CONTRACT) > 0 then return {'known'} end
redis.call('ZREMRANGEBYSCORE', CONTRACTS, '-inf', whole(at))
unpaid_prune(at)
local new = tonumber(redis.call('HGET', WALLETS, 'paid ' .. seeker) or 0) <= 0
if unpaid_bytes('wallet ' .. seeker) + size > tonumber(new and own_new or own_paid) then return {'full'} end
if new and unpaid_bytes('new') + size > tonumber(all_new) then
  return {'crowded', unpack(redis.call('ZRANGEBYSCORE', UNPAID_NEW, '-inf', whole(at - tonumber(shelter)), 'LIMIT', 0,
    oldest))}
end
local entry = table.concat({contract, size, seeker, new and '1' or '0'}, ' ')
local left = redis.call('PTTL', DRAFT)
redis.call('HSET', CONTRACT, 'document', document, 'hash', digest, 'state', 'signed', 'created', created,
  'registered', whole(at), 'unpaid', entry)
-- Time of drafting by our own clock; a contract registered again after data loss has none.
if left > 0 then redis.call('HSET', CONTRACT, 'drafted', whole(at + left * 1000 - tonumber(draft_life))) end
redis.call('PEXPIRE', CONTRACT, math.max(1, math.floor((tonumber(expires) - at) / 1000)))
redis.call('ZADD', CONTRACTS, expires, CONTRACT)
redis.call('ZADD', UNPAID, expires, entry)
if new then redis.call('ZADD', UNPAID_NEW, whole(at), entry) end
unpaid_sum('wallet ' .. seeker, size)
if new then unpaid_sum('new', size) end
redis.call('DEL', DRAFT)
redis.call('ZREM', DRAFTS, DRAFT)
return {'kept'}
