-- The seeker asks for the next attempt of a parked execution.
-- KEYS   transition(id)
-- ARGV   id, body digest, input JSON, input reference
-- Result {'queued', lane}, {'conflict'} or {'gone'}
local id, digest = ARGV[1], ARGV[2]
local state, parked, known, lane = unpack(get('state', 'parked', 'digest', 'lane'))
if state ~= 'pending' or not parked or parked == '' then return {'gone'} end
if known ~= digest and parked ~= 'input' then return {'conflict'} end
local at = now()
if known ~= digest then
  redis.call('HSET', RECORD, 'digest', digest, 'input', ARGV[3], 'input_ref', ARGV[4])
  redis.call('DEL', STEPS)
  redis.call('HSET', RECORD, 'said', '0', 'marks', '0')
end
redis.call('HSET', RECORD, 'parked', '', 'due', '0', 'updated', whole(at))
queue(id, at, lane)
wake()
return {'queued', lane}
