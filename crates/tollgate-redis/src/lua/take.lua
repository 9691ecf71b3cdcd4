-- Takes of one unit of one limit: nearly all requests. The same as the algorithms below, in one piece and
-- without functions, which Lua would make anew for each call of the script. Keys are read by one command,
-- and a key is written once, however many requests take of it. What is not as usual goes to `left_over`:
-- values of others or of other numbers, and clocks that went back. Logs are always in bodies.

-- One unit of one bucket alone, the usual call in a cluster whose callers share no slots: without tables it
-- takes 11 % fewer instructions of the server. What is not as usual is left to the loop below.
if ARGV[2] == '\1\1\1\1\2' and byte(ARGV[3]) <= 2 then
  local _, suffix, ttl, _, _, drain, unit, unit_part, full, full_part, most = unpack(BUCKET, ARGV[3])
  local value = pcall('GET', KEYS[1])
  if value and #value == SUFFIX_AT - 1 + #suffix and sub(value, SUFFIX_AT) == suffix then
    local mark, whole, part = unpack(STATE, value)
    if mark <= now and whole <= most and part < drain then
      whole = whole - (now - mark)
      if whole < 0 then whole, part = 0, 0 end
      whole = whole + unit
      if part >= drain - unit_part then
        whole, part = whole + 1, part - (drain - unit_part)
      else
        part = part + unit_part
      end
      if whole > full or whole == full and part > full_part then return { now, { 1, value } } end
      call('SET', KEYS[1], pack(VALUE, now, whole, part, suffix), 'PX', ttl)
      return { now, value }
    end
  end
end

-- Returns true if a * b < c * d, exactly: products beyond 2^53 are compared with what rounding took from
-- them (Veltkamp, Dekker).
local function is_less(a, b, c, d)
  -- A local of its own: a function that refers to one outside costs each call more.
  local left, right, MOST = a * b, c * d, 9007199254740991
  if left <= MOST and right <= MOST then return left < right end
  local function halves(x)
    local high = x * 134217729
    high = high - (high - x)
    return high, x - high
  end
  local function rest(rounded, x, y)
    local x_high, x_low = halves(x)
    local y_high, y_low = halves(y)
    return x_low * y_low - (((rounded - x_high * y_high) - x_low * y_high) - x_high * y_low)
  end
  return left < right or left == right and rest(left, a, b) < rest(right, c, d)
end

local replies, plan = { now }, { byte(ARGV[2], 1, -1) }
local taken_keys, at, key, left_over = plan[1], 2, 0, nil
local values
if taken_keys == 1 then
  values = { pcall('GET', KEYS[1]) }
elseif taken_keys > 1 then
  values = call('MGET', spread(KEYS, 1, taken_keys))
end

while key < taken_keys do
  local index, last_key = plan[at], key + plan[at + 1]
  at = at + 2
  local blob = ARGV[2 + index]
  local kind, _, suffix, ttl, horizon, period, align, from, till = byte(blob)
  local drain, unit, unit_part, full, full_part, most, to_next
  if kind <= 2 then
    _, suffix, ttl, _, _, drain, unit, unit_part, full, full_part, most = unpack(BUCKET, blob)
    to_next = drain - unit_part
  elseif kind == 3 then
    _, suffix, ttl, _, horizon, period, full, align, from, till = unpack(WINDOW, blob)
  else
    _, suffix, ttl, _, period, full = unpack(COUNTER, blob)
  end
  local length = SUFFIX_AT - 1 + #suffix

  while key < last_key do
    key = key + 1
    local found, mark, a, b = values[key], now, 0, 0
    local last, usual, stored, charged = at + plan[at], true, found or '', false
    if found then
      usual = #found == length and sub(found, SUFFIX_AT) == suffix
      if usual then
        mark, a, b = unpack(STATE, found)
        usual = mark <= now
      end
    end

    if kind <= 2 then
      -- Token bucket and leaky bucket: the debt is `a` microseconds and `b` ticks.
      if a > most or b >= drain then usual = false end
      a = a - (now - mark)
      if a < 0 then a, b = 0, 0 end
      for i = at + 1, usual and last or at do
        local whole, part = a + unit, b + unit_part
        if b >= to_next then whole, part = whole + 1, b - to_next end
        if whole < full or whole == full and part <= full_part then
          replies[plan[i]] = stored
          a, b, charged = whole, part, true
          stored = pack(VALUE, now, a, b, suffix)
        else
          replies[plan[i]] = { 1, stored }
        end
      end
    elseif kind == 3 then
      -- Fixed window: `a` units are used, and `b` microseconds are left.
      if a > MOST or b > horizon then usual = false end
      b = b - (now - mark)
      if a == 0 or b <= 0 then
        a, b = 0, period
        if align == CALENDAR then
          if now < from or now >= till then usual = false end
          b = till - now
        elseif align ~= FIRST_HIT then
          b = fmod(now - from, period)
          b = b < 0 and -b or period - b
        end
      end
      for i = at + 1, usual and last or at do
        if a < full then
          replies[plan[i]] = stored
          a, charged = a + 1, true
          stored = pack(VALUE, now, a, b, suffix)
        else
          replies[plan[i]] = { 1, stored }
        end
      end
    else
      -- Sliding window counter: `a` units are used of this window, and `b` of the one before.
      if a > MOST or b > MOST then usual = false end
      local elapsed, passed = fmod(now, period), now - mark
      if passed > elapsed then a, b = 0, passed - elapsed <= period and a or 0 end
      for i = at + 1, usual and last or at do
        if b < full - a or a < full and is_less(b, period - elapsed, full - a, period) then
          replies[plan[i]] = stored
          a, charged = a + 1, true
          stored = pack(VALUE, now, a, b, suffix)
        else
          replies[plan[i]] = { 1, stored }
        end
      end
    end

    if charged and found then
      call('SET', KEYS[key], stored, 'PX', ttl)
    elseif charged then
      -- MGET shows values that are no strings as nothing.
      usual = call('SET', KEYS[key], stored, 'PX', ttl, 'NX')
    end
    if not usual then
      left_over = left_over or {}
      for i = at + 1, last do left_over[#left_over + 1] = { index, key, plan[i] } end
    end
    at = last + 1
  end
end
if at > #plan and not left_over then return replies end
