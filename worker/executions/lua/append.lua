-- Adds facts about work under way, and what is to be remembered with them.
-- KEYS   transition(id)
-- ARGV   fence, number of this write within the fence, most events, most bytes, number of record fields,
--        field, value, ..., kind, payload, kind, payload, ...
-- Result 'ok', 'full' (nothing was written) or 'lost'; the same number again is 'ok' and writes nothing
local fence, most_events, most_bytes, fields = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[5])
local write = fence .. ':' .. ARGV[2]
local at = now()
if not holds(fence, at) then return 'lost' end
if redis.call('HGET', RECORD, 'write') == write then return 'ok' end
local first, size = 6 + 2 * fields, 0
for i = first, #ARGV, 2 do size = size + #ARGV[i] + #ARGV[i + 1] end
local events = (#ARGV - first + 1) / 2
if events > 0 and not fits(events, size, most_events, most_bytes) then return 'full' end
redis.call('HSET', RECORD, 'updated', whole(at), 'write', write, unpack(ARGV, 6, first - 1))
for i = first, #ARGV, 2 do emit(at, ARGV[i], ARGV[i + 1]) end
wake()
return 'ok'
