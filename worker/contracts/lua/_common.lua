-- Put in front of the contract scripts.
local function whole(n) return string.format('%.0f', n) end
