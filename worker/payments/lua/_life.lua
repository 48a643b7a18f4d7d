-- Shared by the scripts about money writes that must not be lost. A life of the store lasts from one start of its
-- server, or one takeover by a replica, to the next; a new life may have lost the end of the old one.

-- A process seen within this time before the end of a life may have made a write that is lost.
local HEARD_OF = 10e6
-- A replica that has been away for longer is no longer waited for.
local REPLICA_AWAY = 600e6
-- Within this time after a new life began, any process that remembers more than the store has reported.
local GRACE = 5e6

local function known_life()
  local life, replica_at, pending, writes, hold, began, done, to, last = unpack(redis.call('HMGET', LIFE, 'life',
    'replica_at', 'pending', 'writes', 'hold', 'began', 'done', 'to', 'at'))
  return {life = life, replica_at = replica_at, pending = pending, writes = writes, hold = tonumber(hold or 0),
    began = tonumber(began or 0), done = done, to = tonumber(to or 0), last = tonumber(last or 0)}
end

-- The life by what the server says of itself. A server that starts or takes over has a new replication id, so the
-- dearer run id is asked for only with it, or where the server hides the other.
local function present_life(link, known)
  if known and string.find(link, 'master_replid:' .. string.sub(known, -40), 1, true) then return known end
  local id = string.match(link, 'master_replid:(%w+)')
  return (string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or 'unnamed') .. '/' .. (id or 'unnamed')
end

-- Detects a new life. Returns what is known of it, and '1' where a write must be on a replica too before it is relied
-- on.
local function look_at_life(at)
  local known = known_life()
  local link = redis.call('INFO', 'replication')
  local life, replica_at = present_life(link, known.life), known.replica_at
  if tonumber(string.match(link, 'connected_slaves:(%d+)') or 0) > 0 then
    if at - tonumber(replica_at or 0) > 1e6 then redis.call('HSET', LIFE, 'replica_at', whole(at)) end
    replica_at = at
  end
  if known.life ~= life then
    local last = redis.call('ZREVRANGE', WRITERS, 0, 0, 'WITHSCORES')[2]
    local writers = last and redis.call('ZRANGEBYSCORE', WRITERS, whole(last - HEARD_OF), '+inf') or {}
    -- A store seen for the first time is most likely new, and a contract's time may be in whole seconds.
    local began = whole(known.life and at or math.floor(at / 1e6) * 1e6)
    -- Two lives that ended in quick succession: no process remembers all of it.
    local vouched = known.life and known.pending ~= '1' and #writers > 0
    redis.call('HSET', LIFE, 'life', life, 'life_before', known.life or '', 'began', began, 'hold', began,
      'hold_before', whole(known.hold), 'done', '', 'pending', vouched and '1' or '',
      'silent', table.concat(writers, ' '), 'writes_before', known.writes or '0')
    known = known_life()
  end
  return known, replica_at and at - tonumber(replica_at) < REPLICA_AWAY and '1' or ''
end

-- How long (us) a contract signed at that time must not get a 402, 0 when it may. `longest`: how long after its
-- claim an authorization for it may still land.
local function held_for(at, known, signed, registered, longest)
  if signed < known.hold and (known.done ~= known.life or known.to < known.hold + longest) then
    if known.pending == '1' or known.done ~= known.life then return GRACE end
    return math.max(1e6, known.hold + longest - at)
  end
  -- A contract that was forgotten too and has come back: found money may be its own.
  if signed < known.began and registered > known.last then
    redis.call('HSET', LIFE, 'wanted', '1')
    return 2e6
  end
  return 0
end

-- Counts a write that must not be lost, so that the process that made it can tell whether it is still there.
local function count_write(at, writer)
  redis.call('ZADD', WRITERS, whole(at), writer)
  return whole(redis.call('HINCRBY', LIFE, 'writes', 1))
end
