-- After an end: the agent hears of it if it was not the one who ended it, and jobs are taken back.
-- KEYS   transition(id), epochs, mailbox, held, waiting, lists of jobs
-- ARGV   id, session, most messages of a mailbox, message, number of messages before it, those messages,
--        job of each list of jobs
-- Result 1
typed('ZCARD', KEYS[25], KEYS[28], unpack(KEYS, 29))
typed('LLEN', KEYS[26])
typed('HLEN', KEYS[27])
local id, epoch, by = ARGV[1], unpack(get('epoch', 'sealed_by'))
local before = tonumber(ARGV[5])
if by ~= ARGV[2] and redis.call('HEXISTS', KEYS[27], id) == 1 then
  local at = now()
  for i = 6, 5 + before do post(KEYS[25], epoch, KEYS[26], at, ARGV[3], ARGV[i]) end
  post(KEYS[25], epoch, KEYS[26], at, ARGV[3], ARGV[4])
end
redis.call('HDEL', KEYS[27], id)
redis.call('ZREM', KEYS[28], id)
for i = 29, #KEYS do redis.call('ZREM', KEYS[i], ARGV[i - 23 + before]) end
redis.call('HDEL', STEPS, 'jobs')
redis.call('ZREM', TIMERS, id)
return 1
