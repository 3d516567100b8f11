-- The step of shared.Keeping.Apply, whose numbers are those of its comment. Times are microseconds.
--
-- KEYS[1] is a hash. Under "keeper" it has "ends lease id", or nothing if the key is free; and under "value"
-- what was written last.
--
-- ARGV[1] is the clock, or 0 for the server's: only tests have one of their own. The answer is the ID, the clock, and
-- the Value, unless that is the one of the question.
local now, id, lease, value = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local limit = 9007199254740992 -- 2^53
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- A value of another type counts as none.
local state = redis.pcall('HMGET', KEYS[1], 'keeper', 'value')
if state.err then
  if not string.find(state.err, '^WRONGTYPE') then return state end
  state = {}
end

-- read returns the ID, Lease and Ends of a state, or nil for one that is damaged.
local function read(text)
  if not text or text == '' then return '', 0, 0 end
  local e, l, who = string.match(text, '^(%d+) (%d+) (.+)$')
  if not e then return nil end
  e, l = tonumber(e), tonumber(l)
  if e < 1 or e > limit or l < 1 or l > 60000000 or l % 1000 > 0 then return nil end
  return who, l, e
end

local function write(who, leased, ends, ...)
  local keeper = ''
  if who ~= '' then keeper = string.format('%.0f %.0f ', ends, leased) .. who end
  redis.call('HSET', KEYS[1], 'keeper', keeper, ...)
  redis.call('PEXPIRE', KEYS[1], 86400000)
end

local keeper, leased, ends = read(state[1])
local none, old = not keeper or not (state[1] or state[2]), state[2]
if none then keeper, leased, ends, old = '', 0, 0, false end
local back = ends > now + leased -- 1.
if back then ends = now + leased end
if ends <= now then keeper = '' end -- 2.

local clock = string.format('%.0f', now)
if keeper == id then -- 3.
  if lease == 0 then id = '' end
  write(id, lease, now + lease, 'value', value)
  return {id, clock}
end
if keeper == '' and lease > 0 then -- 4.
  if none then redis.call('DEL', KEYS[1]) end
  write(id, lease, now + lease)
  return {id, clock, old}
end
if back then
  write(keeper, leased, ends)
elseif none then
  redis.call('DEL', KEYS[1])
else
  redis.call('HDEL', KEYS[1], '') -- Nothing, but it fails where a write would fail: at a replica.
end
return {keeper, clock, old}
