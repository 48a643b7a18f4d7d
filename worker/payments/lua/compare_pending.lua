-- Whether a contract may have been paid for in a time that the store has forgotten.
-- KEYS   what was compared
-- ARGV   when the contract was made (us), how far its maker's clock may go ahead (us)
-- Result 1 until the ledger was compared with the chain since this server started, 0 after
local info = redis.call('INFO', 'server')
local run, up = string.match(info, 'run_id:(%w+)'), string.match(info, 'uptime_in_seconds:(%d+)')
local known = redis.call('HGET', KEYS[1], 'run_id')
if not run or known == run then return 0 end
local restarted = now() - tonumber(up or 0) * 1e6
-- A store that was never compared is new: only a contract older than it could have been paid for.
if known then restarted = restarted + tonumber(ARGV[2]) end
return tonumber(ARGV[1]) < restarted and 1 or 0
