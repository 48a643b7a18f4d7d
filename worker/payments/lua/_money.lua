-- Shared by every money script. An execution's payments are numbered; `current` is the one that counts now. Each
-- is open until it is settled, refused or released, and every change is booked in the journal.

local function paid_with(number, ...)
  local names = {...}
  for i, name in ipairs(names) do names[i] = number .. ' ' .. name end
  return unpack(redis.call('HMGET', MONEY, unpack(names)))
end

-- The current payment's number, that of the one that has paid, the contract, and fields of the current payment. Most
-- executions have one payment: its fields are read with its number.
local function current_payment(...)
  local names = {'current', 'paid', 'contract', ...}
  for i = 4, #names do names[i] = '1 ' .. names[i] end
  local found = redis.call('HMGET', MONEY, unpack(names))
  if not found[1] or found[1] == '1' then return unpack(found) end
  return found[1], found[2], found[3], paid_with(found[1], ...)
end

-- The delay before the nth repetition of a call; the last in the list applies to all later ones.
local function nth_delay(delay_list, n)
  local delays = {}
  for delay in string.gmatch(delay_list, '%d+') do delays[#delays + 1] = tonumber(delay) end
  return delays[math.min(n, #delays)]
end

local function journal_line(id, at, fact, number, amount, detail)
  return table.concat({whole(at), fact, id, number, amount, detail or '-'}, ' ')
end

local function book(...) redis.call('RPUSH', JOURNAL, journal_line(...)) end

-- The payer decides which hooks are notified of the end, as long as no work was begun for somebody else.
local function choose_hooks(number, hooks, accepted)
  local state, started = unpack(get('state', 'first_started'))
  if accepted and state and not started then redis.call('HSET', RECORD, 'hooks', hooks) end
  redis.call('HDEL', MONEY, number .. ' hooks')
end

-- Moves an open payment to another state in which it is open; further arguments are stored with it in MONEY.
local function advance(id, at, number, to, amount, hooks, detail, ...)
  if hooks then choose_hooks(number, hooks, true) end
  redis.call('HSET', MONEY, number .. ' state', to, ...)
  book(id, at, to, number, amount, detail)
end

-- Ends a payment, or corrects its end; the sums by state always add up to the total ever claimed. Further arguments
-- are stored with it in MONEY.
local function turn(id, at, number, to, detail, ...)
  local state, amount, payer, hooks = paid_with(number, 'state', 'amount', 'payer', 'hooks')
  if state == to then return end
  local of = {state = state, amount = amount, payer = payer, parked = get('parked')[1]}
  if hooks then choose_hooks(number, hooks, to == 'settled') end
  turn_known(id, at, number, to, detail, of, ...)
end

-- The same without choosing hooks. `of`: its state, amount and payer, and whether its execution is parked, as stored;
-- `wallet`: what wallet_left() has returned, if it has been read.
local function turn_known(id, at, number, to, detail, of, ...)
  local from, amount = of.state, of.amount
  redis.call('HSET', MONEY, number .. ' state', to, ...)
  if from == 'settled' or from == 'refused' or from == 'released' then
    redis.call('HINCRBY', SUMS, from, -amount)
  else
    redis.call('HINCRBY', SUMS, 'open', -amount)
    wallet_goes(id, of.payer, (of.parked or '') ~= '', at, of.wallet or wallet_left(of.payer))
  end
  redis.call('HINCRBY', SUMS, to, amount)
  book(id, at, to, number, amount, detail)
end

-- Records a payment whose settlement outcome is unknown, and notifies followers of the execution once.
local function becomes_unknown(id, at, number, cause)
  local payment, amount, hooks = paid_with(number, 'state', 'amount', 'hooks')
  local execution = redis.call('HGET', RECORD, 'state')
  if payment ~= 'settling' then return end
  advance(id, at, number, 'unknown', amount, hooks, cause)
  if execution and not TERMINAL[execution] then
    emit(at, 'payment.unknown', '{"number":' .. number .. '}')
    wake()
  end
end

-- The authorization can no longer be settled: the work waits for another payment.
local function let_go(id, at, number)
  local code = 'authorization_too_short'
  turn(id, at, number, 'released', code, number .. ' code', code)
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
