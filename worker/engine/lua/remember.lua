-- Stores the first value given for a name, so that a run after a crash gets the same value.
--
-- keys
--   log record steps
-- args
--   fence
--   name
--   value
--   kind         of the event that reports it, or ''
--   payload
--   most_events
--   most_bytes
-- answers
--   kept  value; in a full log it is stored without its event
--   lost
local at = now()
if not holds(fence, at) then return {'lost'} end
if redis.call('HSETNX', STEPS, name, value) == 1 and kind ~= ''
    and fits(1, #kind + #payload, most_events, most_bytes) then
  emit(at, kind, payload)
  wake()
end
return {'kept', redis.call('HGET', STEPS, name)}
