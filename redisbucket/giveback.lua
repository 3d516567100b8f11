-- The step of shaper.Take.ApplyGiveBack. take.lua says what KEYS[1] has. The version of the
-- rate does not count. Text that is equal is the same number, as both are written in one way.
local numbers, parts = ARGV[1], tonumber(ARGV[2])
local state = redis.pcall('GET', KEYS[1])
if type(state) == 'table' then
  if not string.find(state.err, '^WRONGTYPE') then return state end
  return 0
end
local m, p, at, version, held = string.match(state or '', '^(%d+) (%d+) (%d+) (%d+) (.+)$')
local rate = held and string.match(held, '^(%d+ %d+ %d+ %d+ %d+ %d+) @%d+$') or held -- without a hold
if rate ~= numbers or m ~= ARGV[5] or p ~= ARGV[6] then return 0 end

local empty, empty_part = tonumber(m) - tonumber(ARGV[3]), tonumber(p) - tonumber(ARGV[4])
if empty_part < 0 then empty, empty_part = empty - 1, empty_part + parts end
if empty < 0 then empty, empty_part = 0, 0 end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ttl = math.max(0, math.ceil((empty - now) / 1000)) + 60000
redis.call('SET', KEYS[1], string.format('%.0f %.0f ', empty, empty_part) .. table.concat({at, version, held}, ' '), 'PX', string.format('%.0f', ttl))
return 1
