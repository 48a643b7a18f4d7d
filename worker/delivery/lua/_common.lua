-- Put in front of the delivery scripts.
local function whole(n) return string.format('%.0f', n) end
