-- Requests with a body, one after the other, as if each came alone at this instant; and what take.lua has
-- left over.

-- By the first byte of a limit.
local algorithms = {
  token_bucket, leaky_bucket, fixed_window, sliding_window_log, sliding_window_counter,
}
local made, limits = {}, {}

local function limit_at(index)
  local blob = ARGV[2 + index]
  local kind = byte(blob)
  local algorithm = made[kind]
  if not algorithm then
    algorithm = algorithms[kind]()
    made[kind] = algorithm
  end
  local limit = algorithm.read(blob)
  limit.algorithm = algorithm
  limits[index] = limit
  return limit
end

-- What is stored: '' for nothing, 0 for what no value of ours can be. Never read beyond its bound.
local function stored(key)
  local value = pcall('GETRANGE', key, 0, LONGEST)
  if value.err or #value > LONGEST then return 0 end
  return value
end

-- Reads the state of a key into `place`. False: it is odd.
local function open(limit, place, key)
  local value = stored(key)
  place.limit, place.key, place.raw, place.dirty = limit, key, value, false
  place.excess, place.excess_units = nil, nil
  if value == 0 then return false end
  local algorithm = limit.algorithm
  if algorithm.open_value then return algorithm.open_value(limit, place, value) end
  if value == '' then return algorithm.open(limit, place, now, 0, 0) end
  local suffix, excess = sub(value, SUFFIX_AT), ''
  if suffix ~= limit.suffix then
    -- A bucket may have excess behind it.
    local length = #value - (SUFFIX_AT - 1) - #limit.suffix
    if length ~= EXCESS_LENGTH and length ~= EXCESS_UNITS_LENGTH then return false end
    suffix, excess = sub(value, SUFFIX_AT, -1 - length), sub(value, -length)
    if not algorithm.open_excess or suffix ~= limit.suffix then return false end
  end
  local mark, a, b = unpack(STATE, value)
  if mark - now > math.max(limit.horizon, JUMP_MIN) then return false end
  if excess ~= '' and not algorithm.open_excess(limit, place, mark, a, b, excess) then return false end
  return algorithm.open(limit, place, mark, a, b)
end

local function write(place)
  local limit = place.limit
  local algorithm = limit.algorithm
  local value = algorithm.close and algorithm.close(limit, place)
    or pack(STATE, place.at, place.a, place.b) .. limit.suffix
  if place.excess then
    value = value .. pack(EXCESS, place.excess, place.excess_part)
  elseif place.excess_units then
    value = value .. pack(EXCESS_UNITS, place.excess_units)
  end
  call('SET', place.key, value, 'PX', algorithm.ttl(limit, place))
end

-- One unit of one limit. `place` is the same for all such requests.
local place_of_one = {}
local function take_one(limit, key)
  local algorithm, place = limit.algorithm, place_of_one
  if not open(limit, place, key) then return { ODD, place.raw } end
  local unit, part = limit.unit, limit.unit_part
  local admitted = algorithm.admits(limit, place, unit, part)
  local reply = algorithm.reply and algorithm.reply(limit, place, 1, admitted) or place.raw
  if not admitted then return { 1, reply } end
  algorithm.charge(limit, place, unit, part)
  write(place)
  return reply
end

-- Bits of what a check is. script.rs has the same.
local SHADOW, JUDGED, CHARGED, COUNTED, AT_ONCE, NEVER, NEVER_ALONE, WHOLE =
  1, 2, 4, 8, 16, 32, 64, 128

local function has(flags, bit)
  return flags % (bit + bit) >= bit
end

-- Opens the states of a request. False: one of them is odd.
local function open_all(body, at, keys_before, count)
  local places, fine = {}, true
  for i = 1, count do
    local index = unpack('<I2', body, at)
    at = at + 2
    places[i] = {}
    fine = open(limits[index] or limit_at(index), places[i], KEYS[keys_before + i]) and fine
  end
  return places, fine, at
end

local function raws(first, places)
  local reply = { first }
  for i, place in ipairs(places) do reply[i + 1] = place.raw end
  return reply
end

local function admits(place, flags, never, cost, part)
  if not has(flags, JUDGED) then return true end
  return not has(flags, never) and place.limit.algorithm.admits(place.limit, place, cost, part)
end

-- Several checks as one request: all are charged, or none is. See together.rs.
local function decide(body, keys_before, from)
  local _, count, checks, at = unpack('<BBB', body, from or 1)
  local places, fine
  places, fine, at = open_all(body, at, keys_before, count)
  if not fine then return raws(ODD, places), count end
  local mask, asked = 0, {}
  for i = 1, checks do
    local index, flags, judged, judged_part, cost, part, next_at = unpack('<BBI7I7I7I7', body, at)
    local place = places[index]
    local admitted = admits(place, flags, NEVER, judged, judged_part)
    if admitted and has(flags, AT_ONCE) then admitted = place.limit.algorithm.is_idle(place) end
    if not admitted and not has(flags, SHADOW) then mask = mask + 2 ^ (i - 1) end
    asked[i] = { place, flags, cost, part, admitted }
    local reply = place.limit.algorithm.reply
    if reply and not has(flags, WHOLE) then 
      local charges = has(flags, CHARGED) and (admitted or has(flags, COUNTED))
      place.raw = reply(place.limit, place, cost, charges)
    end
    at = next_at
  end
  local reply = raws(mask, places)
  for i = 1, checks do
    local one = asked[i]
    local place, flags, cost, part = one[1], one[2], one[3], one[4]
    local granted = false
    if mask == 0 and has(flags, CHARGED) then
      granted = admits(place, flags, NEVER_ALONE, cost, part)
        and (one[5] or not has(flags, AT_ONCE))
    end
    local algorithm = place.limit.algorithm
    if granted then
      algorithm.charge(place.limit, place, cost, part)
      place.dirty = true
    elseif has(flags, COUNTED) then
      local charge = algorithm.charge_refused or algorithm.charge
      charge(place.limit, place, cost, part)
      place.dirty = true
    end
  end
  for _, place in ipairs(places) do
    if place.dirty then write(place) end
  end
  return reply, count
end

-- Gives back what was charged, at an instant or, without one, now.
local function refund(body, keys_before)
  local _, index, dated, charged_at, cost, part = unpack('<BI2BI7I7I7', body)
  local limit, place = limits[index] or limit_at(index), {}
  if dated == 0 then charged_at = nil end
  local fine = open(limit, place, KEYS[keys_before + 1])
  if place.raw == '' then return '', 1 end
  if not fine then return { ODD, place.raw }, 1 end
  local algorithm = limit.algorithm
  if algorithm.give_back then
    if algorithm.give_back(limit, place, cost, charged_at) then write(place) end
    return place.raw, 1
  end
  -- What is refunded of excess is left to Rust.
  if #place.raw ~= SUFFIX_AT - 1 + #limit.suffix then return { ODD, place.raw }, 1 end
  local mark, a, b = unpack(STATE, place.raw)
  local ttl
  a, b, ttl = algorithm.refund(limit, mark, a, b, cost, part, charged_at)
  if a == false then return { ODD, place.raw }, 1 end
  if a then call('SET', place.key, pack(STATE, mark, a, b) .. limit.suffix, 'PX', ttl) end
  return place.raw, 1
end

-- Writes what Rust made of what was stored, if that is still there. If not, others were faster:
-- what they wrote may be decided here, as the end of the body says.
local NOTHING, STRING, SWAPPED = 0, 1, -2
local function swap(body, keys_before)
  local _, count = unpack('<BB', body)
  local at, reply, same, writes = 3, { SWAPPED }, true, {}
  for i = 1, count do
    local kind, old, writing, new, ttl
    kind, old, writing, new, ttl, at = unpack('<BI4c0BI4c0Bc0', body, at)
    local value = stored(KEYS[keys_before + i])
    reply[i + 1] = value
    if kind == NOTHING then
      same = same and value == ''
    elseif kind == STRING then
      same = same and value == old
    else
      same = same and value == 0
    end
    if writing == 1 then writes[#writes + 1] = { KEYS[keys_before + i], new, ttl } end
  end
  if not same then
    if byte(body, at) == 1 then return decide(body, keys_before, at + 1) end
    reply[1] = ODD
    return reply, count
  end
  for _, one in ipairs(writes) do call('SET', one[1], one[2], 'PX', one[3]) end
  return reply, count
end

-- What is stored.
local function look(body, keys_before)
  local _, count = unpack('<BB', body)
  local reply = { 0 }
  for i = 1, count do
    reply[i + 1] = stored(KEYS[keys_before + i])
  end
  return reply, count
end

-- One unit of one limit.
local function take(body, keys_before)
  local _, index = unpack('<BI2', body)
  return take_one(limits[index] or limit_at(index), KEYS[keys_before + 1]), 1
end

for _, one in ipairs(left_over or {}) do
  local index, key, position = one[1], one[2], one[3]
  replies[position] = take_one(limits[index] or limit_at(index), KEYS[key])
end
local acts, keys, body_at = { decide, refund, swap, look, take }, taken_keys, #ARGV
for i = at, #plan do
  local body, used = ARGV[body_at]
  replies[plan[i]], used = acts[byte(body)](body, keys)
  keys, body_at = keys + used, body_at - 1
end
return replies

