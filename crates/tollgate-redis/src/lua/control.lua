-- What instances tell each other: that they are alive, and facts that hold for all of them.
--
-- A fact has a kind (b: a block, o: an override, r: rules), a name, and a value
--   STAMP,STOP,MARK,PAYLOAD
-- where STAMP is when somebody decided it and STOP when it ends (0: never), both in microseconds of
-- this server's clock, and MARK is + or, for what was taken back, -. Of two that speak of the same
-- name the later decided holds, whoever tells it first. A stamp ahead of this clock was written by a
-- server whose clock was ahead of it: what is decided now is later all the same.
--
-- Who has a secret seals rules and overrides, with their STOP: then this takes it as it is told, and never changes it.
--
-- The log has the version at which each fact was last written, so that an instance asks only for
-- what is new to it. Versions are this clock's microseconds, and grow even if the clock does not.
--
-- KEYS  head, live, blocks, overrides, rules, log, ends
-- ARGV  instance (empty: it only watches the epoch, and is none of them), epoch if there is none, epoch known, version seen, most blocks, most overrides,
--       most changes told, most bytes told, then of each fact told: kind, name, 'a' or 's', when,
--       after, stop, mark, payload.
--       a: decided so many microseconds ago, knowing of the one with the stamp `after`, and ending so
--       many from now, or at that instant if it is sealed; s: as it was told before.
--       The mark ~ takes back what is there, and leaves no trace if nothing is.
-- Reply epoch, now, live instances, listed from, listed to, version, what came of each fact told (1
--       taken, 0 a later one is there, 2 no room, 3 nothing to take back), then the changes: kind,
--       name, value, …
--
-- No call keeps the server for long: what takes more goes on with the next.

local HEAD, LIVE, LOG, ENDS = KEYS[1], KEYS[2], KEYS[6], KEYS[7]
local FACTS = { b = KEYS[3], o = KEYS[4], r = KEYS[5] }
local ROOM = { b = tonumber(ARGV[5]), o = tonumber(ARGV[6]), r = 1 }
local ALIVE_US, LIVE_MS, LIVE_MAX = 2000000, 60000, 4096
local KEEP_MS, REFRESH_MS = 400 * 86400000, 399 * 86400000
local DROPPED_MAX, HEALED_MAX = 100, 64

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- No clock is ahead by so much: such a stamp is not ours.
local FAR = now + KEEP_MS * 1000
-- The latest instant that there is.
local MAX = 2 ^ 53 - 1

local function text(number)
  return string.format('%.0f', number)
end

-- At once: should a later command fail, nothing stays for ever.
local kept = {}
local function keep(key)
  if not kept[key] then
    kept[key] = true
    redis.call('PEXPIRE', key, KEEP_MS)
  end
end

-- If one of the keys was evicted, deleted or is not ours, this is another life of the store: all
-- instances tell anew what they know, and what is left in the others is listed again.
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
-- Nor is a number ours that could not have been counted up to: adding to it may change nothing.
local function ours(number)
  return number and number >= 0 and number <= FAR and number % 1 == 0
end
local head = redis.call('HMGET', HEAD, 'epoch', 'version', 'shape', 'heal')
local epoch = string.match(head[1] or '', '^%x+$')
local version, was = tonumber(head[2] or ''), head[3]
if not ours(version) then version = nil end
local top = tonumber(redis.call('ZREVRANGE', LOG, 0, 0, 'WITHSCORES')[2] or '0')
if not ours(top) then
  redis.call('UNLINK', LOG)
  sound, top = false, 0
end
-- No table has more places than fit into so many digits, and a longer cursor is an error.
local heal = string.match(head[4] or '', '^[bor]%d+$')
if heal and #heal > 16 then sound = false end
local changed = false
if not (sound and epoch and version and top <= version and was == shape()) then
  epoch, version = ARGV[2], math.max(version or 0, top)
  heal, changed = 'b0', true
end

-- A replica that took over may lack the last writes: then some of what was seen is gone.
local from = tonumber(ARGV[4])
if epoch ~= ARGV[3] or from > version then from = 0 end

local function read(kind, name)
  local value = redis.call('HGET', FACTS[kind], name)
  if not value then return nil end
  local stamp, stop, mark = string.match(value, '^(%d+),(%d+),([+-]),')
  stamp, stop = tonumber(stamp or '0'), tonumber(stop or '0')
  if stamp > FAR or stop > MAX then stamp, stop, mark = 0, 0, nil end
  return stamp, stop, mark, value
end

local function value_of(stamp, stop, mark, payload)
  return text(stamp) .. ',' .. text(stop) .. ',' .. mark .. ',' .. payload
end

local function write(kind, name, stamp, stop, mark, payload)
  changed = true
  version = math.max(version + 1, now)
  redis.call('HSET', FACTS[kind], name, value_of(stamp, stop, mark, payload))
  keep(FACTS[kind])
  redis.call('ZADD', LOG, text(version), kind .. name)
  keep(LOG)
  if stop > 0 then
    redis.call('ZADD', ENDS, text(stop), kind .. name)
    keep(ENDS)
  else
    redis.call('ZREM', ENDS, kind .. name)
  end
end

local ended = redis.call('ZRANGEBYSCORE', ENDS, '-inf', text(now), 'LIMIT', 0, DROPPED_MAX)
for _, member in ipairs(ended) do
  local kind, name = string.sub(member, 1, 1), string.sub(member, 2)
  local stamp, stop, mark
  if FACTS[kind] then stamp, stop, mark = read(kind, name) end
  if mark and stop > now then
    -- The list of ends is wrong.
    redis.call('ZADD', ENDS, text(stop), member)
  elseif mark and stop == 0 then
    redis.call('ZREM', ENDS, member)
  else
    if FACTS[kind] then redis.call('HDEL', FACTS[kind], name) end
    redis.call('ZREM', LOG, member)
    redis.call('ZREM', ENDS, member)
  end
  changed = true
end

-- Lists again, bit by bit, what is in the hashes.
if heal then
  local kind = string.sub(heal, 1, 1)
  local found = redis.call('HSCAN', FACTS[kind], string.sub(heal, 2), 'COUNT', HEALED_MAX)
  for at = 1, #found[2], 2 do
    local name, value = found[2][at], found[2][at + 1]
    local member, stop = kind .. name, tonumber(string.match(value, '^%d+,(%d+),[+-],') or '')
    if #name ~= 16 or not stop or stop > MAX then
      redis.call('HDEL', FACTS[kind], name)
    else
      if not redis.call('ZSCORE', LOG, member) then
        version = math.max(version + 1, now)
        redis.call('ZADD', LOG, text(version), member)
        keep(LOG)
      end
      if stop > 0 then
        redis.call('ZADD', ENDS, text(stop), member)
        keep(ENDS)
      end
    end
  end
  local after = { b = 'o0', o = 'r0' }
  if found[1] == '0' then heal = after[kind] else heal = kind .. found[1] end
  changed = true
end

local count = {}
local function has_room(kind)
  count[kind] = count[kind] or redis.call('HLEN', FACTS[kind])
  return count[kind] < ROOM[kind]
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
  local sealed = string.sub(payload, 1, 3) == 's2,'
  if fresh then
    stamp = math.max(now - stamp, tonumber(ARGV[at + 4]) + 1)
    if stop > 0 and not sealed then stop = now + stop end
  end
  local old_stamp, old_stop, old_mark, old_value = read(kind, name)
  if fresh and old_mark and old_stamp > now then stamp = old_stamp + 1 end
  stamp, stop = math.max(math.min(stamp, FAR), 0), math.min(stop, MAX)
  local outcome = 1
  if mark == '~' and old_mark ~= '+' then
    outcome = 3
  elseif old_mark and (old_stamp > stamp or (old_stamp == stamp and not fresh)) then
    outcome = 0
    -- A sealed value with the same stamp is the same, unless somebody has changed it.
    local is_other = sealed and old_value ~= value_of(stamp, stop, mark, payload)
    if old_stamp > stamp or is_other then tell(kind .. name, old_value) end
  elseif not old_stamp and not has_room(kind) then
    outcome = 2
  else
    if mark == '~' then mark = '-' end
    if old_mark == '+' and mark == '-' and not sealed then
      -- Nobody can bring back what would have ended.
      if old_stop > 0 then stop = math.min(stop, old_stop) end
    elseif old_mark == '+' and kind == 'b' then
      -- Nobody shortens a block by blocking again.
      stop = math.max(stop, old_stop)
    end
    if not old_stamp then count[kind] = count[kind] + 1 end
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
  else
    redis.call('ZREM', LOG, member)
    changed = true
  end
  if (at + 1 == #listed and #listed == 2 * most) or bytes <= 0 then
    to = tonumber(listed[at + 1])
    break
  end
end

if ARGV[1] ~= '' then
  redis.call('ZADD', LIVE, text(now), ARGV[1])
  redis.call('PEXPIRE', LIVE, LIVE_MS)
end
redis.call('ZREMRANGEBYSCORE', LIVE, '-inf', '(' .. text(now - ALIVE_US))
redis.call('ZREMRANGEBYSCORE', LIVE, '(' .. text(now + ALIVE_US), '+inf')
redis.call('ZREMRANGEBYRANK', LIVE, 0, -LIVE_MAX - 1)

if changed then
  redis.call(
    'HSET', HEAD, 'epoch', epoch, 'version', text(version), 'shape', shape(), 'heal', heal or '')
  keep(HEAD)
end
if redis.call('PTTL', HEAD) < REFRESH_MS then
  for _, key in ipairs({ HEAD, KEYS[3], KEYS[4], KEYS[5], LOG, ENDS }) do
    keep(key)
  end
end

return { epoch, now, redis.call('ZCARD', LIVE), from, to, version, outcomes, changes }
