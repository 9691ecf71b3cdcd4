-- Sliding window log: see sliding_window_log.rs. A value is the mark and the running sum before the
-- oldest entry, the suffix, and the entries, oldest first: instant and running sum, 7 bytes each. Sums
-- wrap around at 2^53; only differences count.

local function sliding_window_log()
  local log = {}
  local MAX_ENTRIES, MERGED_MAX, SIZE, ENTRY = 1024, 64, 14, '<I7I7'
  -- Of longer logs only the entries that answer the request are sent back.
  local SHORT = 24

  function log.read(blob)
    local limit, _ = {}
    _, limit.suffix, limit.ttl, limit.memory, limit.horizon, limit.full, limit.buckets, limit.span =
      unpack('<BBc0Bc0I7I7I7I2I7', blob)
    limit.unit, limit.unit_part, limit.period = 1, 0, limit.horizon
    return limit
  end

  local function plus(sum, units)
    if sum > MOST - units then return sum - (MOST - units) - 1 end
    return sum + units
  end

  local function minus(sum, units)
    if sum < units then return sum + (MOST - units) + 1 end
    return sum - units
  end

  -- An instant as the log counts it: floor(instant * buckets / period).
  local function tick_of(limit, instant)
    local buckets, period = limit.buckets, limit.period
    if buckets == 0 then return instant end
    local rest = fmod(instant, period)
    local tick = (instant - rest) / period * buckets
    local scaled = rest * buckets
    if scaled <= MOST then return tick + (scaled - fmod(scaled, period)) / period end
    -- Bit by bit, so that no remainder is ever as large as two periods.
    local quotient, remainder = 0, 0
    for bit = 9, 0, -1 do
      quotient, remainder = quotient * 2, remainder * 2
      if remainder >= period then quotient, remainder = quotient + 1, remainder - period end
      if fmod(math.floor(buckets / 2 ^ bit), 2) == 1 then
        remainder = remainder + rest
        if remainder >= period then quotient, remainder = quotient + 1, remainder - period end
      end
    end
    return tick + quotient
  end

  -- Where the entry at `index`, counted from 0, begins.
  local function offset(limit, index)
    return 15 + #limit.suffix + index * SIZE
  end

  local function sum_before(limit, place, index)
    if index == 0 then return place.base end
    return (unpack('<I7', place.value, offset(limit, index - 1) + 7))
  end

  -- The first entry from `low` on that is not older than `tick`.
  local function first_since(limit, place, low, tick)
    local high = place.count
    while low < high do
      local middle = low + math.floor((high - low) / 2)
      if unpack('<I7', place.value, offset(limit, middle)) < tick then
        low = middle + 1
      else
        high = middle
      end
    end
    return low
  end

  -- The live entry with which `units` are complete.
  local function completing(limit, place, units)
    local low, high = place.first, place.count
    while low < high do
      local middle = low + math.floor((high - low) / 2)
      if minus(sum_before(limit, place, middle + 1), place.before) < units then
        low = middle + 1
      else
        high = middle
      end
    end
    return low
  end

  local function look(limit, place)
    local tick = place.tick
    local expired = tick >= limit.span and tick - limit.span + 1 or 0
    place.first = first_since(limit, place, 0, expired)
    place.before = sum_before(limit, place, place.first)
    place.last = sum_before(limit, place, place.count)
    place.total = minus(place.last, place.before)
  end

  -- Its own way of reading a value; mark and base are where other states have their first numbers.
  function log.open_value(limit, place, value)
    local count, mark, base = 0, now, 0
    if value ~= '' then
      local entries = #value - 14 - #limit.suffix
      if entries < 0 or fmod(entries, SIZE) ~= 0 or entries >= MAX_ENTRIES * SIZE
        or sub(value, 15, 14 + #limit.suffix) ~= limit.suffix then
        return false
      end
      mark, base = unpack(ENTRY, value)
      if mark - now > math.max(limit.horizon, JUMP_MIN) or base > MOST then return false end
      count = entries / SIZE
    end
    place.value, place.count, place.base, place.mark = value, count, base, mark
    place.at = mark > now and mark or now
    place.tick = tick_of(limit, place.at)
    look(limit, place)
    return place.total <= MOST and place.last <= MOST
  end

  function log.admits(limit, place, cost)
    return cost <= limit.full - place.total
  end

  -- Merges the closest neighbours of a full log, as sliding_window_log.rs does.
  local function thin(limit, place)
    local value, head = place.value, offset(limit, 0)
    local instants, stretches = {}, {}
    for i = 1, MAX_ENTRIES do instants[i] = unpack('<I7', value, head + (i - 1) * SIZE) end
    for i = 2, MAX_ENTRIES - 1 do stretches[i - 1] = instants[i + 1] - instants[i - 1] end
    table.sort(stretches)
    local longest, as_long_left = stretches[MERGED_MAX], 1
    while as_long_left < MERGED_MAX and stretches[MERGED_MAX - as_long_left] == longest do
      as_long_left = as_long_left + 1
    end
    local parts, from, merged, last = {}, 1, 0, 0
    for i = 2, MAX_ENTRIES - 1 do
      local stretch = instants[i + 1] - instants[i - 1]
      local as_long = stretch == longest and as_long_left > 0
      if last ~= i - 1 and (stretch < longest or as_long) then
        if as_long then as_long_left = as_long_left - 1 end
        local at = head + (i - 1) * SIZE
        merged, last = merged + 1, i
        parts[merged] = sub(value, from, at - 1)
        from = at + SIZE
      end
    end
    parts[merged + 1] = sub(value, from)
    place.value, place.count = table.concat(parts), MAX_ENTRIES - merged
  end

  function log.charge(limit, place, cost)
    local units = MOST - place.total
    if cost < units then units = cost end
    if units == 0 then return end
    local value, from, till = place.value, offset(limit, place.first), #place.value
    local live, last = place.count - place.first, plus(place.last, units)
    local kept
    if live > 0 and unpack('<I7', value, till - SIZE + 1) == place.tick then
      kept = sub(value, from, till - SIZE)
      live = live - 1
    else
      kept = sub(value, from)
    end
    place.value = pack(ENTRY, place.at, place.before) .. limit.suffix .. kept
      .. pack(ENTRY, place.tick, last)
    place.count, place.first, place.base = live + 1, 0, place.before
    place.mark, place.last, place.total = place.at, last, place.total + units
    if place.count == MAX_ENTRIES then thin(limit, place) end
  end

  function log.close(_, place)
    return place.value
  end

  function log.ttl(limit, place)
    return keep_for(limit.ttl, limit.memory, place.at, limit.memory)
  end

  -- What Rust needs of the value to answer a request of this cost, as a shorter log.
  function log.reply(limit, place, cost, charges)
    local value, live = place.value, place.count - place.first
    if value == '' then return value end
    local head = pack(ENTRY, place.mark, place.before) .. limit.suffix
    if live <= SHORT then return head .. sub(value, offset(limit, place.first)) end
    -- What is merged depends on all entries.
    if charges and live >= MAX_ENTRIES - 1 then return value end
    local over, wanted = place.total - limit.full, { [place.count - 1] = true }
    for _, units in ipairs({ 1, over, over + 1, over + cost, over + cost + 1, over + 2 * cost }) do
      if units >= 1 and units <= place.total then wanted[completing(limit, place, units)] = true end
    end
    local order = {}
    for index in pairs(wanted) do order[#order + 1] = index end
    table.sort(order)
    for i, index in ipairs(order) do
      local at = offset(limit, index)
      order[i] = sub(value, at, at + SIZE - 1)
    end
    return head .. table.concat(order)
  end

  -- Takes up to `units` out of the entry at `index`; returns how many.
  local function take_back(limit, place, index, units)
    local value, at = place.value, offset(limit, index)
    local held = minus(sum_before(limit, place, index + 1), sum_before(limit, place, index))
    local taken = held < units and held or units
    local parts = { sub(value, 1, at - 1) }
    if taken == held then
      at = at + SIZE
      place.count = place.count - 1
    end
    while at < #value do
      local tick, sum = unpack(ENTRY, value, at)
      parts[#parts + 1] = pack(ENTRY, tick, minus(sum, taken))
      at = at + SIZE
    end
    place.value = table.concat(parts)
    return taken
  end

  -- Out of the entry charged, or of the one it was merged into; without an instant out of the
  -- youngest. Whether anything changed.
  function log.give_back(limit, place, units, charged_at)
    if charged_at then
      local tick = tick_of(limit, charged_at)
      local index = first_since(limit, place, place.first, tick)
      if place.tick - tick >= limit.span or index >= place.count then return false end
      take_back(limit, place, index, units)
      return true
    end
    if place.count <= place.first then return false end
    while units > 0 and place.count > place.first do
      units = units - take_back(limit, place, place.count - 1, units)
    end
    return true
  end

  return log
end
