-- Grants the lease for a facilitator call: one call per payment at a time, journaled before it is made.
--
-- keys
--   money record journal life open_payments writers
-- args
--   id
--   token   of the caller
--   lease   us
--   writer  writing process
--   chain   '1' when the caller can look at the chain
-- answers
--   go    number, writes, life, '1' where it must be on a replica too, payload, requirements, payer,
--         '1' when an earlier call ended unknown, '1' when one may have moved the money,
--         code of a refusal that waits for a look at the chain or '', when it came (us) or '',
--         a hash to look for or '', the contract's reference
--   busy  another call is open, it is too early, or a refusal waits for a caller that can look at the chain
--   no    state
local lease = tonumber(lease)
local number, _, contract, state, held, holder, payload, requirements, payer, unknown, amount, again, maybe, refusal, refused,
  named, calls, hooks = current_payment('state', 'lease', 'token', 'payload', 'requirements', 'payer', 'unknown',
    'amount', 'again', 'maybe', 'refusal', 'refused_at', 'hash', 'calls', 'hooks')
local phase = redis.call('HGET', RECORD, 'phase')
local at = now()
if not number then return {'no', 'none'} end
local wanted = state == 'settling' or state == 'unknown' or (state == 'verified' and phase == 'settling')
if not wanted then return {'no', state} end
if tonumber(held or 0) > at and holder ~= token then return {'busy'} end
if tonumber(again or 0) > at then return {'busy'} end
if refusal and chain ~= '1' then return {'busy'} end
local known, replicated = look_at_life(at)
local facts = {number .. ' lease', whole(at + lease), number .. ' token', token}
local function fact(name, value) facts[#facts + 1], facts[#facts + 2] = number .. ' ' .. name, value end
-- A call that began and was never answered may have moved the money.
if state == 'settling' then
  unknown, maybe = '1', '1'
  fact('unknown', '1')
  fact('maybe', '1')
end
if not refusal then fact('calls', whole((calls or 0) + 1)) end
local lines = {}
if state == 'verified' then
  if hooks then choose_hooks(number, hooks, true) end
  fact('state', 'settling')
  lines[1] = journal_line(id, at, 'settling', number, amount)
end
if not refusal then lines[#lines + 1] = journal_line(id, at, 'settle_call', number, amount) end
redis.call('HSET', MONEY, unpack(facts))
redis.call('ZADD', OPEN_PAYMENTS, whole(at + lease), id)
if lines[1] then redis.call('RPUSH', JOURNAL, unpack(lines)) end
local writes = count_write(at, writer)
return {'go', number, writes, known.life, replicated, payload, requirements, payer, unknown or '', maybe or '',
  refusal or '', refused or '', named or '', contract}
