-- Order of bought work that waits for a process.
local LINE_WINDOW = 400
-- Of every four neighbours in a queue one may be a newcomer's while others wait behind it.
local LINE_VOUCHED = 3

-- How many of `ahead` executions, waiting or being verified, are counted before the next one. Newcomers keep every
-- fourth place while others queue behind them, so for one of them each newcomer ahead counts twice.
local function line_ahead(ahead, newcomer, wallet, at)
  return newcomer and math.max(ahead, 2 * math.min(ahead, #newcomers(wallet.newcomers, at))) or ahead
end

-- Moves work of a wallet that has paid ahead of newcomers' work at the end of the queue. Newcomers keep every fourth
-- place, so that they wait longer but do not starve. `all`: newcomers' entries, as stored.
local function go_ahead(list, id, at, all)
  local entries, new = newcomers(all, at), {}
  for _, entry in ipairs(entries) do new[string.match(entry, ':(.*)$')] = true end
  if new[id] or not next(new) then return end
  local since = LINE_VOUCHED
  for _, other in ipairs(redis.call('LRANGE', list, -LINE_WINDOW, -1)) do
    if other == id then return end
    if not new[other] then
      since = since + 1
    elseif since < LINE_VOUCHED then
      if redis.call('LREM', list, -1, id) > 0 then redis.call('LINSERT', list, 'BEFORE', other, id) end
      return
    else
      since = 0
    end
  end
end
