-- Bytes of signed contracts that nobody has paid for. UNPAID holds their entries by their end, UNPAID_NEW those of
-- wallets that had never paid, by registration, UNPAID_BYTES the sums: 'wallet WALLET' and 'new'.
-- An entry is the text 'reference size wallet new', with new '1' or '0'.

local function unpaid_sum(field, size)
  if redis.call('HINCRBY', UNPAID_BYTES, field, size) <= 0 then redis.call('HDEL', UNPAID_BYTES, field) end
end

-- Releases the quota of a contract that is paid for or gone.
local function unpaid_release(entry)
  if redis.call('ZREM', UNPAID, entry) == 0 then return end
  local size, wallet, new = string.match(entry, '^%S+ (%d+) (%S+) (%d)$')
  unpaid_sum('wallet ' .. wallet, -size)
  if new == '1' then
    redis.call('ZREM', UNPAID_NEW, entry)
    unpaid_sum('new', -size)
  end
end

local function unpaid_prune(at)
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', UNPAID, '-inf', whole(at), 'LIMIT', 0, 200)) do
    unpaid_release(entry)
  end
end

local function unpaid_bytes(field) return tonumber(redis.call('HGET', UNPAID_BYTES, field) or 0) end
