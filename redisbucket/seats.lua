-- The step of shared.Seating.Apply, whose numbers are those of its comment. Times are microseconds, and all
-- numbers are doubles, as in take.lua.
--
-- KEYS[1] is a hash. For each process, by its ID, it has "held want since expires number". Under the empty
-- name, which no ID is, it has "ready run", where run is that of the server that has written all this. After
-- a restart or a fail-over the hash may be an older copy, in which seats that are in use are free. So one of
-- another run counts as none.
--
-- ARGV[1] is the clock, or 0 for the server's: only tests have one of their own.
local now, id = tonumber(ARGV[1]), ARGV[2]
local cap, held, want = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local number, answered = tonumber(ARGV[6]), tonumber(ARGV[7])
local lease, fresh, guard = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local seats, limit = 2147483647, 9007199254740992 -- 2^31 - 1, 2^53

if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or '-' -- It may be forbidden.

-- A value of another type counts as none.
local state = redis.pcall('HGETALL', KEYS[1])
if state.err then
  if not string.find(state.err, '^WRONGTYPE') then return state end
  state = {}
end

-- before reports whether an ID is before another by its bytes: < would go by the server's locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- read returns Ready, and all processes, or nil for a state that is damaged.
local function read()
  local ready, all = nil, {}
  for i = 1, #state, 2 do
    local name, text = state[i], state[i + 1]
    if name == '' then
      local at, by = string.match(text, '^(%d+) (%S+)$')
      ready = tonumber(at or 0)
      if by ~= run or ready < 1 or ready > limit then return nil end
    else
      local h, w, s, e, n = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
      if not h then return nil end
      h, w, s, e, n = tonumber(h), tonumber(w), tonumber(s), tonumber(e), tonumber(n)
      if h > seats or w > seats or s > limit or e < 1 or e > limit or n > limit then return nil end
      all[#all + 1] = {id = name, held = h, want = w, since = s, expires = e, number = n, text = text}
    end
  end
  return ready, all
end

local ready, all = read()
local none = not ready
if none then ready, all = now + guard, {} end -- 1.
ready = math.min(ready, now + guard) -- 2.

local own, others, gone = {since = 0, number = 0}, {}, {}
for _, h in ipairs(all) do
  h.expires, h.since = math.min(h.expires, now + lease), math.min(h.since, now)
  if h.expires <= now then gone[#gone + 1] = h.id -- 3.
  elseif h.id == id then own = h
  else others[#others + 1] = h end
end
if own.number > number then -- 4.
  redis.call('HSETNX', KEYS[1], '', '') -- Nothing, but it fails where a write would fail: at a replica.
  return string.format('%.0f %.0f %.0f', own.held, cap, now)
end
if answered > own.number and now >= ready then ready = now + guard end -- 5.
local since = 0 -- 6.
if want > held then since = own.since > 0 and own.since or now end

local function text(h, w, s, e, n) return string.format('%.0f %.0f %.0f %.0f %.0f', h, w, s, e, n) end

local changes, wants, waiting, free, starving = {}, {want}, {}, cap - held, false
for _, h in ipairs(others) do
  local now_text = text(h.held, h.want, h.since, h.expires, h.number)
  if now_text ~= h.text then
    changes[#changes + 1] = h.id
    changes[#changes + 1] = now_text
  end
  free = free - h.held
  if h.want > h.held and now + lease - h.expires <= fresh then -- 7.
    waiting[#waiting + 1] = h
    starving = starving or h.held == 0
    wants[#wants + 1] = h.want
  else
    wants[#wants + 1] = math.min(h.want, h.held)
  end
end

-- upTo returns how many seats it takes to lift all who wait up to a level.
local function upTo(level)
  local sum = math.max(math.min(want, level) - held, 0)
  for _, h in ipairs(waiting) do sum = sum + math.max(math.min(h.want, level) - h.held, 0) end
  return sum
end

-- share returns how many seats this process has when all that are free have gone, one by one, to whoever has fewest:
-- all who wait have come up to one level, and what is left then goes to those who have waited longest.
local function share()
  if #waiting == 0 then return math.min(want, held + free) end
  if upTo(seats) <= free then return want end
  local level, above = 0, seats
  while above - level > 1 do
    local middle = math.floor((level + above) / 2)
    if upTo(middle) <= free then level = middle else above = middle end
  end
  if held > level or want <= level then return math.max(held, math.min(want, level)) end
  local left = free - upTo(level)
  for _, h in ipairs(waiting) do
    if h.held <= level and h.want > level and (h.since < since or (h.since == since and before(h.id, id))) then left = left - 1 end
  end
  return left > 0 and level + 1 or level
end

if free > 0 and want > held and now >= ready then -- 8.
  local got = share()
  if got == want then since = 0 elseif got > held then since = now end
  held = got
end

local target = cap -- 9.
if #waiting > 0 then
  table.sort(wants)
  local left, level = cap, cap
  for i, w in ipairs(wants) do
    local n = #wants - i + 1
    if w * n >= left then
      level = math.floor(left / n)
      if left % n > 0 and not starving then level = level + 1 end
      break
    end
    left = left - w
  end
  target = math.min(want, level)
end

if none then redis.call('DEL', KEYS[1]) end
if held + want > 0 then -- 10.
  changes[#changes + 1] = id
  changes[#changes + 1] = text(held, want, since, now + lease, number)
elseif own.held then
  gone[#gone + 1] = id
end
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
redis.call('HSET', KEYS[1], '', string.format('%.0f ', ready) .. run, unpack(changes))
redis.call('PEXPIRE', KEYS[1], 86400000)
return string.format('%.0f %.0f %.0f', held, target, now)
