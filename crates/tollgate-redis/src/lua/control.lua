-- What instances tell each other: that they are alive, and facts that hold for all of them.
--
-- A fact has a kind (b: a block, o: an override, r: rules), a name, and a value
--   STAMP,STOP,MARK,PAYLOAD
-- where STAMP is when somebody decided it and STOP when it ends (0: never), both in microseconds of
-- this server's clock, and MARK is + or, for what was taken back, -. Of two that speak of the same
-- name the later decided holds, whoever tells it first. A stamp ahead of this clock was written by a
-- server whose clock was ahead of it: what is decided now is later all the same.
--
-- The log has the version at which each fact was last written, so that an instance asks only for
-- what is new to it. Versions are this clock's microseconds, and grow even if the clock does not.
--
-- KEYS  head, live, blocks, overrides, rules, log, ends
-- ARGV  instance, epoch if there is none, epoch known, version seen, most blocks, most overrides,
--       most changes told, most bytes told, then of each fact told: kind, name, 'a' or 's', when,
--       after, stop, mark, payload.
--       a: decided so many microseconds ago, knowing of the one with the stamp `after`, and ending so
--       many from now; s: as it was told before.
-- Reply epoch, now, live instances, listed from, listed to, version, what came of each fact told (1
--       taken, 0 a later one is there, 2 no room), then the changes: kind, name, value, …

local HEAD, LIVE, LOG, ENDS = KEYS[1], KEYS[2], KEYS[6], KEYS[7]
local FACTS = { b = KEYS[3], o = KEYS[4], r = KEYS[5] }
local ROOM = { b = tonumber(ARGV[5]), o = tonumber(ARGV[6]), r = 1 }
local ALIVE_US, LIVE_MS, LIVE_MAX = 2000000, 60000, 4096
local KEEP_MS, REFRESH_MS = 400 * 86400000, 399 * 86400000
local DROPPED_MAX = 1000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- No clock is ahead by so much: such a stamp is not ours.
local FAR = now + KEEP_MS * 1000

local function text(number)
  return string.format('%.0f', number)
end

-- Everything is there or nothing is: if one of the keys was evicted, deleted or is not ours, all
-- instances tell anew what they know.
local function shape()
  return table.concat({
    redis.call('HLEN', KEYS[3]), redis.call('HLEN', KEYS[4]), redis.call('HLEN', KEYS[5]),
    redis.call('ZCARD', LOG), redis.call('ZCARD', ENDS),
  }, ',')
end

local sound = true
for index, kind in ipairs({ 'hash', 'zset', 'hash', 'hash', 'hash', 'zset', 'zset' }) do
  local found = redis.call('TYPE', KEYS[index]).ok
  if found ~= kind and found ~= 'none' then
    redis.call('UNLINK', KEYS[index])
    sound = sound and index == 2
  end
end
local head = redis.call('HMGET', HEAD, 'epoch', 'version', 'shape')
local epoch, version, was = head[1], tonumber(head[2] or ''), head[3]
local changed = false
if not (sound and epoch and version and was == shape()) then
  redis.call('UNLINK', HEAD, KEYS[3], KEYS[4], KEYS[5], LOG, ENDS)
  epoch, version, changed = ARGV[2], 0, true
end

-- A replica that took over may lack the last writes: then some of what was seen is gone.
local from = tonumber(ARGV[4])
if epoch ~= ARGV[3] or from > version then from = 0 end

local function read(kind, name)
  local value = redis.call('HGET', FACTS[kind], name)
  if not value then return nil end
  local stamp, stop, mark = string.match(value, '^(%d+),(%d+),([+-]),')
  stamp = tonumber(stamp or '0')
  if stamp > FAR then stamp, mark = 0, nil end
  return stamp, tonumber(stop or '0'), mark, value
end

local function write(kind, name, stamp, stop, mark, payload)
  changed = true
  version = math.max(version + 1, now)
  local value = text(stamp) .. ',' .. text(stop) .. ',' .. mark .. ',' .. payload
  redis.call('HSET', FACTS[kind], name, value)
  redis.call('ZADD', LOG, text(version), kind .. name)
  if stop > 0 then
    redis.call('ZADD', ENDS, text(stop), kind .. name)
  else
    redis.call('ZREM', ENDS, kind .. name)
  end
end

local ended = redis.call('ZRANGEBYSCORE', ENDS, '-inf', text(now), 'LIMIT', 0, DROPPED_MAX)
for _, member in ipairs(ended) do
  local facts = FACTS[string.sub(member, 1, 1)]
  if facts then redis.call('HDEL', facts, string.sub(member, 2)) end
  redis.call('ZREM', LOG, member)
  redis.call('ZREM', ENDS, member)
  changed = true
end

local changes, outcomes = {}, {}
local function tell(member, value)
  changes[#changes + 1] = string.sub(member, 1, 1)
  changes[#changes + 1] = string.sub(member, 2)
  changes[#changes + 1] = value
end

for at = 9, #ARGV, 8 do
  local kind, name, fresh = ARGV[at], ARGV[at + 1], ARGV[at + 2] == 'a'
  local stamp, stop = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 5])
  local mark, payload = ARGV[at + 6], ARGV[at + 7]
  if fresh then
    stamp = math.max(now - stamp, tonumber(ARGV[at + 4]) + 1)
    if stop > 0 then stop = now + stop end
  end
  local old_stamp, old_stop, old_mark, old_value = read(kind, name)
  if fresh and old_mark and old_stamp > now then stamp = old_stamp + 1 end
  stamp = math.max(math.min(stamp, FAR), 0)
  local outcome = 1
  if old_mark and (old_stamp > stamp or (old_stamp == stamp and not fresh)) then
    outcome = 0
    if old_stamp > stamp then tell(kind .. name, old_value) end
  elseif not old_stamp and redis.call('HLEN', FACTS[kind]) >= ROOM[kind] then
    outcome = 2
  else
    -- Nobody shortens a block by blocking again.
    if kind == 'b' and mark == '+' and old_mark == '+' then stop = math.max(stop, old_stop) end
    write(kind, name, stamp, stop, mark, payload)
  end
  outcomes[#outcomes + 1] = outcome
end

local most, bytes = tonumber(ARGV[7]), tonumber(ARGV[8])
local to, listed = version, redis.call(
  'ZRANGEBYSCORE', LOG, '(' .. text(from), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
for at = 1, #listed, 2 do
  local member = listed[at]
  local facts = FACTS[string.sub(member, 1, 1)]
  local value = facts and redis.call('HGET', facts, string.sub(member, 2))
  if value then
    tell(member, value)
    bytes = bytes - #value
  end
  if (at + 1 == #listed and #listed == 2 * most) or bytes <= 0 then
    to = tonumber(listed[at + 1])
    break
  end
end

redis.call('ZADD', LIVE, text(now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', LIVE, '-inf', '(' .. text(now - ALIVE_US))
redis.call('ZREMRANGEBYSCORE', LIVE, '(' .. text(now + ALIVE_US), '+inf')
redis.call('ZREMRANGEBYRANK', LIVE, 0, -LIVE_MAX - 1)
redis.call('PEXPIRE', LIVE, LIVE_MS)

if changed then
  redis.call('HSET', HEAD, 'epoch', epoch, 'version', text(version), 'shape', shape())
end
if changed or redis.call('PTTL', HEAD) < REFRESH_MS then
  for _, key in ipairs({ HEAD, KEYS[3], KEYS[4], KEYS[5], LOG, ENDS }) do
    redis.call('PEXPIRE', key, KEEP_MS)
  end
end

return { epoch, now, redis.call('ZCARD', LIVE), from, to, version, outcomes, changes }
