-- Keeps the first value given for a name, so that a run after a crash sees what the first one saw.
-- KEYS   transition(id)
-- ARGV   fence, name, value, kind and payload of the event that tells of it ('' for none), most events, most bytes
-- Result {'kept', value} or {'lost'}; in a full log the value is kept without its event
local fence, name, kind, payload = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local at = now()
if not holds(fence, at) then return {'lost'} end
if redis.call('HSETNX', STEPS, name, ARGV[3]) == 1 and kind ~= ''
    and fits(1, #kind + #payload, ARGV[6], ARGV[7]) then
  emit(at, kind, payload)
  wake()
end
return {'kept', redis.call('HGET', STEPS, name)}
