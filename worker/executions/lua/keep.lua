-- Renews the leases of a process's connections.
-- KEYS   epochs
-- ARGV   lease in us, epoch, ...
-- Result those that have ended meanwhile
local at, gone = now(), {}
for i = 2, #ARGV do
  if alive(KEYS[1], ARGV[i], at) then
    redis.call('ZADD', KEYS[1], whole(at + tonumber(ARGV[1])), ARGV[i])
  else
    gone[#gone + 1] = ARGV[i]
  end
end
return gone
