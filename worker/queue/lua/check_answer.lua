-- Stores the answer of a check for its caller, and releases the unused part of the reserved CPU time.
--
-- keys
--   check_answer(id) check_cpu(callers)*
-- args
--   answer
--   life    ms
--   unused  CPU us
-- returns
--   1
for _, key in ipairs(CHECK_CPU) do
  if redis.call('EXISTS', key) == 1 then redis.call('DECRBY', key, unused) end
end
redis.call('SET', CHECK_ANSWER, answer, 'PX', life)
redis.call('PUBLISH', CHECK_ANSWER, '')
return 1
