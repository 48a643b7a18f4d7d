-- Hooks of the engine's scripts: the effects of a start, a seal, an end and a removal on an execution's money.

-- Sends a payment back to verification if that was so long ago that its wallet may have spent the money elsewhere.
-- Wallets whose settled payments cover their open ones are trusted. Returns whether it did.
local VERIFIED_FOR = 5e6
local function verify_again(id, at, number, state, verified, payer, amount)
  if state ~= 'verified' or at - tonumber(verified or at) <= VERIFIED_FOR then return false end
  if pays_for_itself(wallet_of(payer), amount, 0) then return false end
  redis.call('HSET', MONEY, number .. ' state', 'claimed', number .. ' rechecked', whole(at))
  redis.call('HSET', RECORD, 'phase', 'verifying', 'updated', whole(at))
  redis.call('ZADD', OPEN_PAYMENTS, whole(at), id)
  wake()
  return true
end

-- The money of an execution that only the store knows: the key's name lacks its id.
local function money_of(id) MONEY = MONEY .. id end

-- What money_may_begin() must know of the money.
local function money_before()
  return {current_payment('valid_before', 'state', 'verified', 'payer', 'amount')}
end

-- Whether an attempt may begin now, with limits as the record has them. Unpaid work begins only if it could be settled after a full run: before the
-- deadline, and before its authorization ends. Otherwise it waits for another payment or, if none would help, counts
-- as late: expire.lua ends it with the next tick. A payment that was verified long ago is verified again first; the
-- work then returns to the front of its queue.
local function money_may_begin(id, at, money, limit, sla_by, margin, ends_by)
  local number, paid, _, valid_before, state, verified, payer, amount = unpack(money)
  if not number or paid then return true end
  local settled_by = math.min(at + tonumber(limit), tonumber(sla_by or 'inf')) + tonumber(margin or 0)
  if settled_by > tonumber(ends_by) then
    redis.call('HSET', RECORD, 'ends_by', whole(at))
    redis.call('ZADD', DEADLINES, whole(at), id)
    return false
  end
  if settled_by > tonumber(valid_before) * 1e6 then
    let_go(id, at, number)
    return false
  end
  return not verify_again(id, at, number, state, verified, payer, amount)
end

-- What the hooks of a seal and an end must know of the money.
local function money_known() return redis.call('HMGET', MONEY, 'current', 'paid', 'fee', 'fee_wallet') end

-- What a lease of the first settlement call, granted with the seal, must know; nil where there is none. It is for the
-- process whose request waited for the work when its payment was verified, if that process listens and the work was so
-- short that the request is still there. Not where a replica must have the lease before it is used, because that
-- process cannot wait for what another one has written.
local SHORT_WORK = 3e5
local SEAL_LEASE = 2e6
local function money_leased(at, asker, money)
  local number, paid = unpack(money)
  if not number or paid or not asker then return end
  local state, waits, verified, amount, again, calls = paid_with(number, 'state', 'waits', 'verified', 'amount', 'again',
    'calls')
  if state ~= 'verified' or waits ~= '1' or tonumber(again or 0) > at then return end
  if at - tonumber(verified or 0) > SHORT_WORK then return end
  -- A store may forbid this.
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', asker)
  if listeners.err or listeners[2] == 0 then return end
  local known, replicated = look_at_life(at)
  if replicated == '1' then return end
  return {amount = amount, calls = whole((calls or 0) + 1), life = known.life, until_ = whole(at + SEAL_LEASE)}
end

-- Whether a settlement still to come pays for the sealed work; the settler of a waiting request goes first, for up to
-- `grace` (us). With a lease, journals its call as settle_begin.lua does, and returns what its holder is told: the
-- payment's number, the count of writes and the life.
local function money_settles(id, at, grace, money, lease)
  local number, paid = unpack(money)
  if not number or paid then return false end
  redis.call('ZADD', OPEN_PAYMENTS, lease and lease.until_ or whole(at + tonumber(grace)), id)
  if not lease then return true end
  redis.call('HSET', MONEY, number .. ' state', 'settling', number .. ' lease', lease.until_, number .. ' token', 'seal',
    number .. ' calls', lease.calls)
  redis.call('RPUSH', JOURNAL, journal_line(id, at, 'settling', number, lease.amount),
    journal_line(id, at, 'settle_call', number, lease.amount))
  return true, table.concat({number, whole(redis.call('HINCRBY', LIFE, 'writes', 1)), lease.life}, ' ')
end

-- Applies the effects of an execution's end to its money.
local function money_ended(id, at, to, why, money)
  local number, paid, fee, wallet = unpack(money)
  if not number then return end
  -- A payment that has settled is no longer followed.
  local state = number == paid and 'settled' or paid_with(number, 'state')
  -- One that may have moved is followed to its outcome, whatever the state of the work.
  if number ~= paid and state ~= 'settling' and state ~= 'unknown' then redis.call('ZREM', OPEN_PAYMENTS, id) end
  if to == 'completed' then
    if paid then owe_fee(id, at, paid, fee, wallet) end
  elseif not paid or why ~= 'kept' then
    if paid then owe_refund(id, at, paid, why) end
    uncharged(at)
  end
  if state == 'claimed' or state == 'verified' then turn(id, at, number, 'released', why) end
end

-- A run failed for now, and the next attempt is free.
local function money_parked(at)
  local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
  if not number or paid then return end
  uncharged(at)
  redis.call('HINCRBY', WALLETS, 'parked ' .. paid_with(number, 'payer'), 1)
end

-- What a seeker would forfeit by ending work that is already paid for, or nil.
local function money_forfeited()
  local paid = redis.call('HGET', MONEY, 'paid')
  return paid and (paid_with(paid, 'amount'))
end

-- When the authorization of unpaid work ends (us), or nil.
local function money_ends()
  local number, paid = unpack(redis.call('HMGET', MONEY, 'current', 'paid'))
  if number and not paid then return tonumber((paid_with(number, 'valid_before'))) * 1e6 end
end

-- Whether the outcome of a payment is open, or a refund still due.
local function money_open()
  local number = tonumber(redis.call('HGET', MONEY, 'count') or 0)
  for n = 1, number do
    local state, refund = paid_with(n, 'state', 'refund state')
    if state == 'settling' or state == 'unknown' or (refund and refund ~= 'settled') then return true end
  end
  return false
end

-- Removes the execution; what its payments bought, and when, is kept under the payments' own keys.
local function money_removed(id, numbers, payments, state, ended)
  local contract, bought = redis.call('HGET', MONEY, 'contract'), {}
  for i, number in ipairs(numbers) do
    local how, settled, tx, refund = paid_with(number, 'state', 'settled', 'tx', 'refund state')
    if string.sub(redis.call('GET', payments[i]) or '', 1, #id) == id then
      bought[payments[i]] = table.concat({id, number, contract, how, settled or '0', tx or '-', ended, state,
        refund or '-'}, ' ')
    end
  end
  for key, line in pairs(bought) do redis.call('SET', key, line) end
  redis.call('DEL', MONEY, LEDGER)
end
