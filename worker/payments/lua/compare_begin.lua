-- Lease to compare the chain's transfers with the ledger, when due: a new life of the store has begun, calls that
-- were open when the old one ended may still land, somebody waits for it, or the last comparison was long ago.
--
-- keys
--   life writers
-- args
--   interval  us between comparisons
--   holding   the same while contracts are held
--   waiting   the same while somebody waits
--   lease     us
-- answers
--   wait
--   go    life, block compared last or '', when the life began in us
local at = now()
local life = look_at_life(at).life
local done, last, block, held_until, hold, wanted, began = unpack(redis.call('HMGET', LIFE, 'done', 'at', 'block', 'lease',
  'hold', 'wanted', 'began'))
if tonumber(held_until or 0) > at then return {'wait'} end
local wait = tonumber(wanted == '1' and waiting or tonumber(hold or 0) > 0 and holding or interval)
if done == life and at < tonumber(last or 0) + wait then return {'wait'} end
redis.call('HSET', LIFE, 'lease', whole(at + tonumber(lease)), 'wanted', '')
return {'go', life, block or '', began}
