-- How far the comparison has come; with a run id it is done.
-- KEYS   what was compared
-- ARGV   last block compared or '', run id of the server it was done for or '', lease (us) from now
local at = now()
if ARGV[1] ~= '' then redis.call('HSET', KEYS[1], 'block', ARGV[1]) end
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], 'run_id', ARGV[2], 'at', whole(at)) end
redis.call('HSET', KEYS[1], 'lease', whole(at + tonumber(ARGV[3])))
return 1
