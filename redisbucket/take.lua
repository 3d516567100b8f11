-- The step of shaper.Take.Apply, whose numbers are those of its comment. All numbers are
-- doubles, so integers are exact up to 2^53; they become text by string.format only, as
-- tostring loses the last digits.
--
-- KEYS[1] has "micros part at rate": Empty, when it was written, and the rate in force,
-- which is "version micros part parts burst" and the room of a request of cost 1, "micros
-- part".
local rate, parts = ARGV[1], tonumber(ARGV[2])
local rise, rise_part = tonumber(ARGV[3]), tonumber(ARGV[4])
local room, room_part = tonumber(ARGV[5]), tonumber(ARGV[6])
local ahead, guard = tonumber(ARGV[7]), tonumber(ARGV[8])
local high, high_part, seen = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local max_ahead = 2000000
local limit = 9007199254740992

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- A value of another type counts as none.
local state = redis.pcall('GET', KEYS[1])
if type(state) == 'table' then
  if not string.find(state.err, '^WRONGTYPE') then return state end
  state = false
end

-- fields returns the numbers of a rate, or nil if it is not one.
local function fields(text)
  local f = {string.match(text, '^(%-?%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')}
  for i = 1, #f do
    f[i] = tonumber(f[i])
    if f[i] > limit then return nil end
  end
  if #f == 0 then return nil end
  return {version = f[1], unit = f[2], unit_part = f[3], parts = f[4], burst = f[5], room = f[6], room_part = f[7]}
end

-- read returns Empty, when it was written, and the rate in force if it is another. It
-- returns nil for a state that is damaged.
local function read(text)
  local m, p, at, held = string.match(text, '^(%d+) (%d+) (%d+) (.+)$')
  if not m then return nil end
  m, p, at = tonumber(m), tonumber(p), tonumber(at)
  if m > limit or at > limit then return nil end
  if held == rate then
    if p >= parts then return nil end
    return m, p, at, nil
  end
  local f = fields(held)
  if not f or f.parts < 1 or f.parts > 1e12 or f.unit_part >= f.parts or f.room_part >= f.parts or p >= f.parts
    or f.unit + f.unit_part == 0 or f.burst < 1 then return nil end
  local own = fields(rate)
  -- Only the room differs, which follows from the rest.
  if f.version == own.version and f.unit == own.unit and f.unit_part == own.unit_part
    and f.parts == own.parts and f.burst == own.burst then return nil end
  f.text = held
  return m, p, at, f
end

-- later returns the later of two instants of the same parts.
local function later(m, p, m2, p2)
  if m2 > m or (m2 == m and p2 > p) then return m2, p2 end
  return m, p
end

-- rescale returns the whole microseconds at which the level reaches 0 after a change of
-- the rate. A quotient of doubles has a relative error below 1e-15, so it is made greater
-- by twice as much before it is rounded up: the result is never early. What decides
-- whether slots of the old rate are still to come is compared exactly.
local function rescale(m, p, old)
  local new = fields(rate)
  local span = (m - now) + p / old.parts
  if span <= 0 then return now end
  local scaled = span * (new.unit + new.unit_part / parts) / (old.unit + old.unit_part / old.parts)
  local wait = math.ceil(scaled * (1 + 2e-15))

  local next, next_part = m - now - old.room, p - old.room_part
  if next_part < 0 then next, next_part = next - 1, next_part + old.parts end
  if next > 0 or (next == 0 and next_part > 0) then
    if next >= max_ahead then next, next_part = max_ahead, 0 end
    local fraction = next_part / old.parts + new.room_part / parts
    if fraction > 0 then fraction = math.ceil(fraction + 1e-15) end
    wait = math.max(wait, next + new.room + fraction)
  end
  return math.min(now + wait, limit - 1)
end

local function write(m, p)
  local ttl = math.ceil((m - now) / 1000) + 60000
  redis.call('SET', KEYS[1], string.format('%.0f %.0f %.0f ', m, p, now) .. rate, 'PX', string.format('%.0f', ttl))
end

-- unchanged changes no state, but fails where a write would fail: a replica must not answer
-- with a state that may be old, nor with its own clock.
local function unchanged()
  if state then redis.call('SETRANGE', KEYS[1], 0, '') else redis.call('DEL', KEYS[1]) end
end

local function answer(ok, cold, m, p, other)
  return string.format('%d %d %.0f %.0f %.0f', ok, cold, now, m, p) .. other
end

local m, p, at, old = read(state or '')
local cold, changed = 0, false
if not m then -- 1.
  m, p, cold = now + guard, 0, 1
elseif at > now then -- 2.
  m, changed = m - (at - now), true
end
if old then -- 3.
  if old.version >= fields(rate).version then
    unchanged()
    m, p = later(m, p, now, 0)
    return answer(0, 0, m, p, ' ' .. old.text)
  end
  m, p, changed = rescale(m, p, old), 0, true
end
if now >= seen then m, p = later(m, p, high, high_part) end -- 4.
m, p = later(m, p, now, 0) -- 5.

local first, first_part = m - room, p - room_part -- 6.
if first_part < 0 then first, first_part = first - 1, first_part + parts end
if first > now + ahead or (first == now + ahead and first_part > 0) then
  if changed then write(m, p) else unchanged() end
  return answer(0, cold, m, p, '')
end
local empty, empty_part = m + rise, p + rise_part
if empty_part >= parts then empty, empty_part = empty + 1, empty_part - parts end
if empty >= limit then return redis.error_reply('ERR the level would reach 0 after the year 2255') end
write(empty, empty_part)
return answer(1, cold, m, p, '')
