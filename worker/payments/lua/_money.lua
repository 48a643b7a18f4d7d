-- Shared by every money script. An execution's payments are numbered; `current` is the one that counts now. Each
-- is open until it is settled, refused or released, and every change is booked in the journal.

local function paid_with(number, ...)
  local names = {...}
  for i, name in ipairs(names) do names[i] = number .. ' ' .. name end
  return unpack(redis.call('HMGET', MONEY, unpack(names)))
end

-- The delay before the nth repetition of a call; the last in the list applies to all later ones.
local function nth_delay(delay_list, n)
  local delays = {}
  for delay in string.gmatch(delay_list, '%d+') do delays[#delays + 1] = tonumber(delay) end
  return delays[math.min(n, #delays)]
end

local function book(id, at, fact, number, amount, detail)
  redis.call('RPUSH', JOURNAL, table.concat({whole(at), fact, id, number, amount, detail or '-'}, ' '))
end

-- Moves a payment to another state; the sums by state always add up to the total ever claimed.
local function turn(id, at, number, to, detail)
  local from, amount, payer, hooks = paid_with(number, 'state', 'amount', 'payer', 'hooks')
  if from == to then return end
  local ended = {settled = true, refused = true, released = true}
  if hooks then
    -- The payer decides which hooks are notified of the end, as long as no work was begun for somebody else.
    local state, started = unpack(get('state', 'first_started'))
    local accepted = to ~= 'refused' and to ~= 'released'
    if accepted and state and not started then redis.call('HSET', RECORD, 'hooks', hooks) end
    redis.call('HDEL', MONEY, number .. ' hooks')
  end
  redis.call('HSET', MONEY, number .. ' state', to)
  if from and ended[from] then
    redis.call('HINCRBY', SUMS, from, -amount)
  elseif ended[to] then
    redis.call('HINCRBY', SUMS, 'open', -amount)
    redis.call('HINCRBY', WALLETS, 'open ' .. payer, -1)
    if (get('parked')[1] or '') ~= '' then redis.call('HINCRBY', WALLETS, 'parked ' .. payer, -1) end
    newcomer_goes(id, at)
  end
  if ended[to] then redis.call('HINCRBY', SUMS, to, amount) end
  book(id, at, to, number, amount, detail)
end

-- Records a payment whose settlement outcome is unknown, and notifies followers of the execution once.
local function becomes_unknown(id, at, number, cause)
  local payment, execution = paid_with(number, 'state'), redis.call('HGET', RECORD, 'state')
  if payment ~= 'settling' then return end
  turn(id, at, number, 'unknown', cause)
  if execution and not TERMINAL[execution] then
    emit(at, 'payment.unknown', '{"number":' .. number .. '}')
    wake()
  end
end

-- The authorization can no longer be settled: the work waits for another payment.
local function let_go(id, at, number)
  local code = 'authorization_too_short'
  redis.call('HSET', MONEY, number .. ' code', code)
  turn(id, at, number, 'released', code)
  redis.call('ZREM', OPEN_PAYMENTS, id)
  redis.call('HSET', RECORD, 'phase', 'payment_due', 'due', '0', 'parked', '', 'updated', whole(at))
  emit(at, 'payment.refused', '{"number":' .. number .. ',"code":' .. quoted(code) .. '}')
  wake()
  tell('look')
end

-- A run of bought work ended without a charge: counted against its wallet's budget once, and once more when another
-- payment for it is refused (`again`).
local function uncharged(at, again)
  local number = redis.call('HGET', MONEY, 'current')
  local fence, counted, started = unpack(get('fence', 'uncharged', 'first_started'))
  if not number or (not again and (not started or counted == fence)) then return end
  redis.call('HSET', RECORD, 'uncharged', fence)
  budget_run(paid_with(number, 'payer'), at)
end
