-- Sliding window counter: see sliding_window_counter.rs. Instead of the quotient that the formula has,
-- two products are compared, exactly.

local COUNTER = '<BBc0Bc0I7I7I7'

-- Both halves have few enough bits that products of halves are exact (Veltkamp).
local function halves(x)
  local high = x * 134217729
  high = high - (high - x)
  return high, x - high
end

-- The product and what rounding took from it (Dekker).
local function product(a, b)
  local rounded = a * b
  local a_high, a_low = halves(a)
  local b_high, b_low = halves(b)
  local rest = a_low * b_low - (((rounded - a_high * b_high) - a_low * b_high) - a_high * b_low)
  return rounded, rest
end

-- Whether a * b < c * d.
local function is_less(a, b, c, d)
  local left, right = a * b, c * d
  if left <= MOST and right <= MOST then return left < right end
  local left_rest, right_rest
  left, left_rest = product(a, b)
  right, right_rest = product(c, d)
  return left < right or left == right and left_rest < right_rest
end

-- floor(previous * overlap / period) <= room, without the division.
local function fits(previous, overlap, room, period)
  if room < 0 then return false end
  return previous <= room or is_less(previous, overlap, room + 1, period)
end

-- Takes one unit, the most usual request: the same as below in one piece.
local function sliding_window_counter_taker(blob)
  local _, suffix, ttl, memory, period, full = unpack(COUNTER, blob)
  local length, lag = SUFFIX_AT - 1 + #suffix, math.max(period, JUMP_MIN)
  return function(key)
    local value, at, current, previous = pcall('GET', key), now, 0, 0
    local elapsed
    if value then
      if value.err then return { ODD, 0 } end
      if #value ~= length or sub(value, SUFFIX_AT) ~= suffix then return odd(value) end
      local mark
      mark, current, previous = unpack(STATE, value)
      if current > MOST or previous > MOST or mark - now > lag then return { ODD, value } end
      if mark > now then at = mark end
      elapsed = fmod(at, period)
      local since = at - mark
      if since > elapsed then
        current, previous = 0, since - elapsed <= period and current or 0
      end
    else
      value, elapsed = '', 0
    end
    if not fits(previous, period - elapsed, full - 1 - current, period) then
      return { 1, value }
    end
    local kept = at == now and ttl or keep_for(ttl, memory, at, 2 * period)
    call('SET', key, pack(STATE, at, current + 1, previous) .. suffix, 'PX', kept)
    return value
  end
end

local function sliding_window_counter()
  local counter = {}

  function counter.read(blob)
    local limit, _ = { unit = 1, unit_part = 0 }
    _, limit.suffix, limit.ttl, limit.memory, limit.horizon, limit.full = unpack(COUNTER, blob)
    limit.period = limit.horizon
    return limit
  end

  function counter.open(limit, place, mark, current, previous)
    if current > MOST or previous > MOST then return false end
    local at = mark > now and mark or now
    local elapsed, since = fmod(at, limit.period), at - mark
    if since > elapsed then
      if since - elapsed <= limit.period then
        current, previous = 0, current
      else
        current, previous = 0, 0
      end
    end
    place.at, place.a, place.b, place.elapsed = at, current, previous, elapsed
    return true
  end

  function counter.admits(limit, place, cost)
    local overlap = limit.period - place.elapsed
    return fits(place.b, overlap, limit.full - cost - place.a, limit.period)
  end

  function counter.charge(_, place, cost)
    place.a = add(place.a, cost)
  end

  function counter.ttl(limit, place)
    return keep_for(limit.ttl, limit.memory, place.at, 2 * limit.period)
  end

  function counter.refund(limit, mark, current, previous, cost, _, charged_at)
    if current > MOST or previous > MOST then return false end
    local period = limit.period
    local served_at = mark > now and mark or now
    charged_at = charged_at or served_at
    local charged_in, marked = charged_at - fmod(charged_at, period), mark - fmod(mark, period)
    if served_at - fmod(served_at, period) - charged_in > period then return nil end
    if charged_in == marked then
      current = current > cost and current - cost or 0
    elseif marked - charged_in == period then
      previous = previous > cost and previous - cost or 0
    else
      return nil
    end
    return current, previous, keep_for(limit.ttl, limit.memory, mark, 2 * period)
  end

  return counter
end
