-- A write after all others: a replica that has it has the others too.
--
-- keys
--   life writers
-- returns
--   '1' where it must be on a replica before it is relied on; the store's life
local life, replicated = look_at_life(now())
redis.call('HINCRBY', LIFE, 'fences', 1)
return {replicated, life.life}
