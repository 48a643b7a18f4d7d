-- Appends events about work in progress, and stores record fields with them.
--
-- keys
--   log record
-- args
--   fence
--   number       of this write within the fence
--   most_events
--   most_bytes
--   fields       how many record fields follow
--   facts*       field, value, ..., then kind, payload, ...
-- answers
--   ok    also when the same number comes again, which writes nothing
--   full  nothing was written
--   lost
local write = fence .. ':' .. number
local at = now()
if not holds(fence, at) then return 'lost' end
if redis.call('HGET', RECORD, 'write') == write then return 'ok' end
local first, size = 1 + 2 * tonumber(fields), 0
for i = first, #facts, 2 do size = size + #facts[i] + #facts[i + 1] end
local events = (#facts - first + 1) / 2
if events > 0 and not fits(events, size, most_events, most_bytes) then return 'full' end
redis.call('HSET', RECORD, 'updated', whole(at), 'write', write, unpack(facts, 1, first - 1))
for i = first, #facts, 2 do emit(at, facts[i], facts[i + 1]) end
wake()
return 'ok'
