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

-- What WALLETS has of a wallet, and of all newcomers.
local function wallet_of(payer)
  local paid, open, runs, parked, unproven, new = unpack(redis.call('HMGET', WALLETS, 'paid ' .. payer,
    'open ' .. payer, 'runs ' .. payer, 'parked ' .. payer, 'unproven', 'newcomers'))
  return {paid = tonumber(paid or 0), open = tonumber(open or 0), runs = runs or '', parked = tonumber(parked or 0),
    unproven = unproven or '', newcomers = new or ''}
end

-- The entries of the last hour, and the older ones.
local function budget_entries(entries, at)
  local kept, old = {}, {}
  for entry in string.gmatch(entries, '%S+') do
    local list = tonumber(string.match(entry, '^%d+')) > at - BUDGET_HOUR and kept or old
    list[#list + 1] = entry
  end
  return kept, old
end

-- How long until fewer than `most` of these entries are within the last hour.
local function budget_wait(entries, most, at)
  if #entries < most then return 0 end
  if most < 1 then return BUDGET_HOUR end
  return tonumber(string.match(entries[#entries - most + 1], '^%d+')) + BUDGET_HOUR - at
end

-- Newcomers' entries whose authorization has not expired.
local function newcomers(all, at)
  local entries = {}
  for entry in string.gmatch(all or '', '%S+') do
    if tonumber(string.match(entry, '^%d+')) > at then entries[#entries + 1] = entry end
  end
  return entries
end

-- Whether the wallet's settled payments cover its open ones and `more` others of this amount.
local function pays_for_itself(wallet, amount, more)
  return wallet.paid >= (wallet.open + more) * tonumber(amount)
end

-- Newcomers with another one, who takes one of the places that all of them share.
local function newcomer_comes(id, ends, wallet, at)
  local entries = newcomers(wallet.newcomers, at)
  entries[#entries + 1] = whole(ends) .. ':' .. id
  return table.concat(entries, ' ')
end

-- What WALLETS has that an end of a payment changes.
local function wallet_left(payer)
  return redis.call('HMGET', WALLETS, 'open ' .. payer, 'parked ' .. payer, 'newcomers')
end

-- A payment of the wallet has ended, whatever the outcome: it is no longer open, and a newcomer's place is free.
local function wallet_goes(id, payer, was_parked, at, wallet)
  local open, parked, all = unpack(wallet)
  local changes, left = {'open ' .. payer, whole((open or 0) - 1)}, {}
  local function change(field, value) changes[#changes + 1], changes[#changes + 2] = field, value end
  if was_parked then change('parked ' .. payer, whole((parked or 0) - 1)) end
  local entries = newcomers(all, at)
  for _, entry in ipairs(entries) do
    if string.match(entry, ':(.*)$') ~= id then left[#left + 1] = entry end
  end
  if #left < #entries then change('newcomers', table.concat(left, ' ')) end
  redis.call('HSET', WALLETS, unpack(changes))
end

-- The limit that forbids the wallet another run at this price, and for how long (us; 0 if unknown); nil if none does.
local function over_budget(wallet, amount, allowance, at)
  local most_open, free, prices, most_earned, unproven, most_newcomers = budget_numbers(allowance)
  local prices_paid = math.max(0, wallet.paid) / (prices * math.max(1, tonumber(amount)))
  local runs = budget_entries(wallet.runs, at)
  local wait = budget_wait(runs, free + math.min(most_earned, math.floor(prices_paid)), at)
  if wait > 0 then return 'uncharged', wait end
  if wallet.paid <= 0 then
    wait = budget_wait(budget_entries(wallet.unproven, at), unproven, at)
    if wait > 0 then return 'unproven', wait end
    -- Each open payment may end without a charge: runs begun all at once count like runs one after the other.
    if #runs + wallet.open - math.max(0, wallet.parked) >= free then return 'open', 0 end
  end
  if wallet.open >= most_open then return 'open', 0 end
  if not pays_for_itself(wallet, amount, 1) and #newcomers(wallet.newcomers, at) >= most_newcomers then
    return 'newcomers', 0
  end
end

-- A run of this wallet ended without a charge. Drops entries older than an hour.
local function budget_run(payer, at)
  local wallet = wallet_of(payer)
  local runs = budget_entries(wallet.runs, at)
  runs[#runs + 1] = whole(at)
  redis.call('HSET', WALLETS, 'runs ' .. payer, table.concat(runs, ' '))
  if wallet.paid > 0 then return end
  local all, old = budget_entries(wallet.unproven, at)
  all[#all + 1] = whole(at) .. ':' .. payer
  redis.call('HSET', WALLETS, 'unproven', table.concat(all, ' '))
  for _, entry in ipairs(old) do
    local field = 'runs ' .. string.match(entry, ':(.*)$')
    if #budget_entries(redis.call('HGET', WALLETS, field) or '', at) == 0 then redis.call('HDEL', WALLETS, field) end
  end
end

-- Money of this wallet has settled, or is to be refunded (then the amount is negative).
local function budget_pay(payer, amount)
  redis.call('HINCRBY', WALLETS, 'paid ' .. payer, amount)
end
