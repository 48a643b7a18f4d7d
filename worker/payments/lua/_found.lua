-- Shared by the scripts about money without a known payment.

-- Adds a transfer to the list of found money; drops the oldest when there are too many.
local function list_found(transfer, line, at, most, outcome)
  redis.call('ZADD', FOUND, at, transfer)
  redis.call('HSET', FOUND_ABOUT, transfer, line .. ' ' .. outcome)
  for _, each in ipairs(redis.call('ZRANGE', FOUND, 0, -tonumber(most) - 1)) do
    redis.call('ZREM', FOUND, each)
    redis.call('HDEL', FOUND_ABOUT, each)
  end
end

-- A transfer that was only listed may match a contract now: one that was forgotten too, and has come back.
local function settled_place(transfer)
  local known = redis.call('HGET', FOUND_ABOUT, transfer)
  return known and string.sub(known, -7) ~= ' listed'
end
