-- Budget for unpaid work per wallet. Prepended to every script that moves an execution.
-- WALLETS is one hash with these fields:
--   paid WALLET   what the wallet has paid, minus refunds
--   runs WALLET   when its uncharged runs of the last hour ended, oldest first
--   unproven      the same of all wallets that have paid nothing, each entry 'time:wallet'
--   open WALLET   how many payments of the wallet are open now
--   parked WALLET how many of those belong to failed work that waits for its free retry: it is counted as a run
--   newcomers     open payments of work that nothing their wallet has paid vouches for, each entry 'end:id', where
--                 the end is that of the authorization
-- (the hash also holds the platform fees that gather: 'fee WALLET').
-- An allowance is the text of six numbers: most open, free runs an hour, prices paid for one more run an hour,
-- most of those, runs an hour of all unproven wallets together, and most open payments of newcomers.
local BUDGET_HOUR = 3600e6

local function budget_numbers(allowance)
  local numbers = {}
  for number in string.gmatch(allowance, '%S+') do numbers[#numbers + 1] = tonumber(number) end
  return unpack(numbers)
end

-- The entries of the last hour, and the older ones.
local function budget_entries(field, at)
  local kept, old = {}, {}
  for entry in string.gmatch(redis.call('HGET', WALLETS, field) or '', '%S+') do
    local list = tonumber(string.match(entry, '^%d+')) > at - BUDGET_HOUR and kept or old
    list[#list + 1] = entry
  end
  return kept, old
end

local function budget_paid(payer) return tonumber(redis.call('HGET', WALLETS, 'paid ' .. payer) or 0) end

-- How long until fewer than `most` of these entries are within the last hour.
local function budget_wait(entries, most, at)
  if #entries < most then return 0 end
  if most < 1 then return BUDGET_HOUR end
  return tonumber(string.match(entries[#entries - most + 1], '^%d+')) + BUDGET_HOUR - at
end

-- Newcomers' entries whose authorization has not expired.
local function newcomers(at)
  local entries = {}
  for entry in string.gmatch(redis.call('HGET', WALLETS, 'newcomers') or '', '%S+') do
    if tonumber(string.match(entry, '^%d+')) > at then entries[#entries + 1] = entry end
  end
  return entries
end

-- Whether the wallet's settled payments cover its open ones and `more` others of this amount.
local function pays_for_itself(payer, amount, more)
  local open = tonumber(redis.call('HGET', WALLETS, 'open ' .. payer) or 0)
  return budget_paid(payer) >= (open + more) * tonumber(amount)
end

-- Takes one of the places that all newcomers share.
local function newcomer_comes(id, ends, at)
  local entries = newcomers(at)
  entries[#entries + 1] = whole(ends) .. ':' .. id
  redis.call('HSET', WALLETS, 'newcomers', table.concat(entries, ' '))
end

-- Releases the newcomer's place: its payment has ended, whatever the outcome.
local function newcomer_goes(id, at)
  local entries, left = newcomers(at), {}
  for _, entry in ipairs(entries) do
    if string.match(entry, ':(.*)$') ~= id then left[#left + 1] = entry end
  end
  if #left < #entries then redis.call('HSET', WALLETS, 'newcomers', table.concat(left, ' ')) end
end

-- The limit that forbids the wallet another run at this price, and for how long (us; 0 if unknown); nil if none does.
local function over_budget(payer, amount, allowance, at)
  local most_open, free, prices, most_earned, unproven, most_newcomers = budget_numbers(allowance)
  local paid = budget_paid(payer)
  local earned = math.min(most_earned, math.floor(math.max(0, paid) / (prices * math.max(1, tonumber(amount)))))
  local runs = budget_entries('runs ' .. payer, at)
  local wait = budget_wait(runs, free + earned, at)
  if wait > 0 then return 'uncharged', wait end
  local open = tonumber(redis.call('HGET', WALLETS, 'open ' .. payer) or 0)
  if paid <= 0 then
    wait = budget_wait(budget_entries('unproven', at), unproven, at)
    if wait > 0 then return 'unproven', wait end
    -- Each open payment may end without a charge: runs begun all at once count like runs one after the other.
    local counted = math.max(0, tonumber(redis.call('HGET', WALLETS, 'parked ' .. payer) or 0))
    if #runs + open - counted >= free then return 'open', 0 end
  end
  if open >= most_open then return 'open', 0 end
  if not pays_for_itself(payer, amount, 1) and #newcomers(at) >= most_newcomers then return 'newcomers', 0 end
end

-- A run of this wallet ended without a charge. Drops entries older than an hour.
local function budget_run(payer, at)
  local runs = budget_entries('runs ' .. payer, at)
  runs[#runs + 1] = string.format('%.0f', at)
  redis.call('HSET', WALLETS, 'runs ' .. payer, table.concat(runs, ' '))
  if budget_paid(payer) > 0 then return end
  local all, old = budget_entries('unproven', at)
  all[#all + 1] = string.format('%.0f:', at) .. payer
  redis.call('HSET', WALLETS, 'unproven', table.concat(all, ' '))
  for _, entry in ipairs(old) do
    local field = 'runs ' .. string.match(entry, ':(.*)$')
    if #budget_entries(field, at) == 0 then redis.call('HDEL', WALLETS, field) end
  end
end

-- Money of this wallet has settled, or is to be refunded (then the amount is negative).
local function budget_pay(payer, amount)
  redis.call('HINCRBY', WALLETS, 'paid ' .. payer, amount)
end
