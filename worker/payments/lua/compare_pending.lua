-- Whether a contract may have been paid for in a time that the store has lost.
--
-- keys
--   life writers
-- args
--   signed      when the contract was signed, us
--   registered  us
--   longest     us after its claim that an authorization for it may still land
-- returns
--   how long (us) it must not be asked for money, 0 when it may be
local at = now()
local known = look_at_life(at)
return whole(held_for(at, known, tonumber(signed), tonumber(registered), tonumber(longest)))
