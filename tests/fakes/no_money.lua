-- Hooks of an engine without payments: nothing is sold, so they do nothing.

local function money_of() end

local function money_before() return {} end

local function money_may_begin() return true end

local function money_known() return {} end

local function money_leased() end

local function money_settles() return false end

local function money_ended() end

local function money_parked() end

local function money_forfeited() return nil end

local function money_ends() return nil end

local function money_open() return false end

local function money_removed() end
