-- Puts a pending execution into its agent's line, or takes it out of where it no longer belongs.
-- KEYS   transition(id), waiting
-- ARGV   id
-- Result 'waits', 'early' or 'gone'
typed('ZCARD', KEYS[25])
local id = ARGV[1]
local state, phase, lane, due = unpack(get('state', 'phase', 'lane', 'due'))
if state ~= 'pending' or phase ~= 'working' or lane ~= 'remote' then
  redis.call('ZREM', KEYS[25], id)
  if not (state and TERMINAL[state]) then redis.call('ZREM', TIMERS, id) end
  return 'gone'
end
if tonumber(due or 0) > now() then return 'early' end
line_up(id, KEYS[25])
return 'waits'
