-- Removes an execution that ended long ago, wherever it stands.
-- KEYS   transition(id), its idempotency key, journal of its webhooks, its contract, the lists it stands in
-- ARGV   id, ended before, 'look' to be told only
-- Result 1 when removed, or when it may be
local id = ARGV[1]

-- A payment whose outcome is open, or a refund that is still due.
local function open_money()
  local number = tonumber(redis.call('HGET', MONEY, 'count') or 0)
  for n = 1, number do
    local state, refund = paid_with(n, 'state', 'refund state')
    if state == 'settling' or state == 'unknown' or (refund and refund ~= 'settled') then return true end
  end
  return false
end

local state, phase, ended = unpack(get('state', 'phase', 'ended'))
if not state then
  redis.call('ZREM', ENDED, id)
  return 0
end
if not TERMINAL[state] or phase ~= 'done' or open_money() or tonumber(ended) > tonumber(ARGV[2]) then return 0 end
if ARGV[3] == 'look' then return 1 end
redis.call('HLEN', KEYS[26])
redis.call('HLEN', KEYS[27])
for i = 28, #KEYS do redis.call('ZCARD', KEYS[i]) end
if redis.call('GET', KEYS[25]) == id then redis.call('DEL', KEYS[25]) end
redis.call('DEL', KEYS[26], KEYS[27])
for i = 28, #KEYS do redis.call('ZREM', KEYS[i], id) end
redis.call('ZREM', BY_STATE[state], id)
redis.call('ZREM', ENDED, id)
redis.call('DEL', RECORD, LOG, STEPS, MONEY, LEDGER)
return 1
