-- The step of shaper.Take.Apply, whose numbers are those of its comment. All numbers are
-- doubles, so integers are exact up to 2^53; they become text by string.format only, as
-- tostring loses the last digits. No sum comes near that before the year 2110: no span is
-- above 2^51 microseconds, and now is below.
--
-- KEYS[1] has "micros part at rate": Empty, when it was written, and the rate in force,
-- which is its version and its numbers: "micros part parts burst" and the room of a request
-- of cost 1, "micros part". Without arguments nothing is asked.
if not ARGV[1] then return '' end
local version, numbers, parts = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local rise, rise_part = tonumber(ARGV[4]), tonumber(ARGV[5])
local room, room_part = tonumber(ARGV[6]), tonumber(ARGV[7])
local ahead, guard = tonumber(ARGV[8]), tonumber(ARGV[9])
local high, high_part, seen = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local limit = 9007199254740992 -- 2^53

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- A value of another type counts as none.
local state = redis.pcall('GET', KEYS[1])
if type(state) == 'table' then
  if not string.find(state.err, '^WRONGTYPE') then return state end
  state = false
end

-- fields returns the numbers of a rate one by one, or nil if it is not one.
local function fields(text)
  local m, p, n, burst, rm, rp = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not m then return nil end
  return {
    unit = tonumber(m), unit_part = tonumber(p), parts = tonumber(n), burst = burst,
    room = tonumber(rm), room_part = tonumber(rp), text = text,
  }
end

-- read returns Empty, when it was written, the version of the rate in force, and the numbers
-- of that rate if they are others. It returns nil for a state that is damaged.
local function read(text)
  local m, p, at, v, held = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (.+)$')
  if not m then return nil end
  m, p, at, v = tonumber(m), tonumber(p), tonumber(at), tonumber(v)
  if m > limit or at > limit or at < 1 or v > limit then return nil end
  if held == numbers then
    if p >= parts then return nil end
    return m, p, at, v, nil
  end
  local f, own = fields(held), fields(numbers)
  if not f or f.parts < 1 or f.parts > 1e12 or p >= f.parts
    or f.unit > limit / 4 or f.unit_part >= f.parts or f.unit + f.unit_part == 0
    or #f.burst > 19 or (#f.burst == 19 and f.burst > '9223372036854775807') or tonumber(f.burst) < 1 or f.room > limit / 4 or f.room_part >= f.parts then return nil end
  -- The room follows from the rest, so it can't be all that differs.
  if f.unit == own.unit and f.unit_part == own.unit_part and f.parts == own.parts and f.burst == own.burst then return nil end
  return m, p, at, v, f
end

-- later returns the later of two instants of the same parts.
local function later(m, p, m2, p2)
  if m2 > m or (m2 == m and p2 > p) then return m2, p2 end
  return m, p
end

-- rescale returns the whole microseconds at which the level reaches 0 after a change of
-- the rate. Where a double would not do it calculates with pairs of them, whose sum is the
-- number: two_sum and two_product are exact (Dekker, Veltkamp). What decides whether slots
-- of the old rate are still to come is compared exactly.
local function rescale(m, p, old, new)
  local max_ahead, longest = 2000000, limit / 4
  local function two_sum(a, b)
    local s = a + b
    local t = s - a
    return s, (a - (s - t)) + (b - t)
  end
  local function halves(a)
    local c = 134217729 * a -- 2^27 + 1
    local h = c - (c - a)
    return h, a - h
  end
  local function two_product(a, b)
    local product = a * b
    local ah, al = halves(a)
    local bh, bl = halves(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl
  end
  local function span(micros, part, of) -- micros + part / of
    local quotient = part / of
    local product, rest = two_product(quotient, of)
    local sum, low = two_sum(micros, quotient)
    return two_sum(sum, low + ((part - product) - rest) / of)
  end
  local function plus(a, a2, b, b2)
    local sum, low = two_sum(a, b)
    return two_sum(sum, low + a2 + b2)
  end
  local function times(a, a2, b, b2)
    local product, low = two_product(a, b)
    return two_sum(product, low + a * b2 + a2 * b)
  end
  local function over(a, a2, b, b2)
    local quotient = a / b
    local product, low = two_product(quotient, b)
    return two_sum(quotient, ((a - product) + a2 - low - quotient * b2) / b)
  end
  local function up(a, a2) -- rounded up, and not down because of what a pair can't hold
    local whole = math.floor(a)
    return whole + math.ceil(a - whole + a2 + 1e-6)
  end

  m = m - now
  if m < 0 or (m == 0 and p == 0) then return now end
  local unit, unit2 = span(new.unit, new.unit_part, new.parts)
  local ratio, ratio2 = over(unit, unit2, span(old.unit, old.unit_part, old.parts))
  local level, level2 = span(m, p, old.parts)
  local wait = up(times(level, level2, ratio, ratio2))

  local next, next_part = m - old.room, p - old.room_part
  if next_part < 0 then next, next_part = next - 1, next_part + old.parts end
  if next >= max_ahead then next, next_part = max_ahead, 0 end
  if next > 0 or (next == 0 and next_part > 0) then
    local n, n2 = span(next, next_part, old.parts)
    local rest, rest2 = m - next, p - next_part
    if rest2 < 0 then rest, rest2 = rest - 1, rest2 + old.parts end
    rest, rest2 = span(rest, rest2, old.parts)
    rest, rest2 = times(rest, rest2, ratio, ratio2)
    wait = math.max(wait, up(plus(rest, rest2, n, n2)), up(plus(n, n2, span(new.room, new.room_part, new.parts))))
  end
  return now + math.min(wait, longest)
end

local function write(m, p)
  local ttl = math.ceil((m - now) / 1000) + 60000
  redis.call('SET', KEYS[1], string.format('%.0f %.0f %.0f %.0f ', m, p, now, version) .. numbers, 'PX', string.format('%.0f', ttl))
end

-- unchanged changes nothing, but fails where a write would fail: a replica must not answer
-- with a state that may be old, nor with its own clock.
local function unchanged() redis.call('SETRANGE', KEYS[1], 0, '') end

local function answer(ok, cold, m, p, other)
  return string.format('%d %d %.0f %.0f %.0f', ok, cold, now, m, p) .. other
end

local m, p, at, held, old = read(state or '')
local cold, changed = 0, false
if not m then -- 1.
  m, p, cold, changed = now + guard, 0, 1, true
elseif at > now then -- 2.
  m, changed = m - (at - now), true
end
if old then -- 3.
  if held >= version then
    unchanged()
    m, p = later(m, p, now, 0)
    return answer(0, 0, m, p, string.format(' %.0f ', held) .. old.text)
  end
  m, p, changed = rescale(m, p, old, fields(numbers)), 0, true
elseif cold == 0 then
  changed = changed or held < version
  version = math.max(held, version)
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
write(empty, empty_part)
return answer(1, cold, m, p, '')
