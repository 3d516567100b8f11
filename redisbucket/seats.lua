-- The step of shared.Seating.Apply, whose numbers are those of its comment. Times are microseconds, and all
-- numbers are doubles, as in take.lua.
--
-- KEYS[1] is a hash. For each process, by its ID, it has "held want since expires number". Under the empty
-- name, which no ID is, it has "ready run", where run is that of the server at which the latest guard has begun.
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

-- A value of another type counts as none.
local state = redis.pcall('HGETALL', KEYS[1])
if state.err then
  if not string.find(state.err, '^WRONGTYPE') then return state end
  state = {}
end

-- run returns the name of the server's run, or '-' where INFO is forbidden.
local function run()
  local info = redis.pcall('INFO', 'server')
  local _, last = string.find(type(info) == 'string' and info or '', 'run_id:', 1, true)
  return last and string.sub(info, last + 1, last + 40) or '-'
end

-- before reports whether an ID is before another by its bytes: < would go by the server's locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function text(h, w, s, e, n) return string.format('%.0f %.0f %.0f %.0f %.0f', h, w, s, e, n) end

local ready, by, own, others, gone, changes
local function read() -- 2., 3. It reports whether the state is one that is not damaged.
  ready, by, own, others, gone, changes = nil, nil, {since = 0, number = 0}, {}, {}, {}
  local match, longest = string.match, now + lease
  for i = 1, #state, 2 do
    local name, value = state[i], state[i + 1]
    if name == '' then
      local at
      at, by = string.match(value, '^(%d+) (%S+)$')
      ready = tonumber(at or 0)
      if ready < 1 or ready > limit then return false end
      ready = math.min(ready, now + guard)
    else
      local h, w, s, e, n = match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
      if not h then return false end
      h, w, s, e, n = h + 0, w + 0, s + 0, e + 0, n + 0 -- numbers, faster than by tonumber
      if h > seats or w > seats or s > limit or e < 1 or e > limit or n > limit then return false end
      local back = e > longest or s > now
      if back then e, s = math.min(e, longest), math.min(s, now) end
      if e <= now then
        gone[#gone + 1] = name
      elseif name == id then
        own = {held = h, since = s, number = n}
      else
        others[#others + 1] = {id = name, held = h, want = w, since = s, expires = e}
        if back then
          changes[#changes + 1] = name
          changes[#changes + 1] = text(h, w, s, e, n)
        end
      end
    end
  end
  return ready ~= nil
end

local none = not read()
if none then -- 1.
  state = {}
  read()
  ready, by = now + guard, run()
end
if own.number > number then -- 4.
  redis.call('HSETNX', KEYS[1], '', '') -- Nothing, but it fails where a write would fail: at a replica.
  return string.format('%.0f %.0f %.0f', own.held, cap, now)
end
if answered > own.number and now >= ready then ready = now + guard end -- 5.
local since = 0 -- 6.
if want > held then since = own.since > 0 and own.since or now end

local wants, waiting, free, starving = {want}, {}, cap - held, false
for i = 1, #others do
  local h = others[i]
  local has, could = h.held, h.want
  free = free - has
  if could > has then
    if now + lease - h.expires > fresh then -- 7.
      could = has
    else
      waiting[#waiting + 1] = h
      starving = starving or has == 0
    end
  end
  wants[i + 1] = could
end

-- share returns how many of the free seats fall to this process. Before it gets its next one, each of the others has risen
-- to what it has then, and to one more if it comes first.
local function share()
  local least, most = 0, math.min(free, want - held)
  while least < most do
    local got = math.floor((least + most) / 2)
    local sum = got
    for _, h in ipairs(waiting) do
      local level, s = held + got, h.since
      if s < since or (s == since and before(h.id, id)) then level = level + 1 end
      if level > h.want then level = h.want end
      if level > h.held then sum = sum + level - h.held end
    end
    if sum >= free then most = got else least = got + 1 end
  end
  return least
end

if free > 0 and want > held and now >= ready then -- 8.
  local current = run()
  if by ~= current then
    -- The server has begun anew since, or is another one. What it has may be an older copy, in which seats that are in
    -- use are free; so all are to say what they hold, as after a loss.
    ready, by = now + guard, current
  else
    local got = share()
    held = held + got
    if held == want then since = 0 elseif got > 0 then since = now end
  end
end

local target = cap -- 9.
if #waiting > 0 then
  table.sort(wants)
  local left = cap
  for i, w in ipairs(wants) do
    local n = #wants - i + 1
    if w * n >= left then
      target = math.floor(left / n)
      if left % n > 0 and not starving then target = target + 1 end
      break
    end
    left = left - w
  end
  target = math.min(want, target)
end

if none then redis.call('DEL', KEYS[1]) end
if held + want > 0 then -- 10.
  changes[#changes + 1] = id
  changes[#changes + 1] = text(held, want, since, now + lease, number)
elseif own.held then
  gone[#gone + 1] = id
end
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
redis.call('HSET', KEYS[1], '', string.format('%.0f ', ready) .. by, unpack(changes))
redis.call('PEXPIRE', KEYS[1], 86400000)
return string.format('%.0f %.0f %.0f', held, target, now)
