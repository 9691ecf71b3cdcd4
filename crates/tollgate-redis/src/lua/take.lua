-- Takes of one unit of one limit: nearly all requests. The same as the algorithms below, in one piece and
-- without functions, which Lua would make anew for each call of the script. Keys are read by one command,
-- and a key is written once, however many requests take of it. What is not as usual goes to `left_over`:
-- values of others or of other numbers, and clocks that went back. Logs are always in bodies.

local plan = { byte(ARGV[2], 1, -1) }
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
  local kind = byte(blob)
  local is_bucket, is_window = kind <= 2, kind == 3
  local _, suffix, ttl, horizon, period, align, from, till
  local drain, unit, unit_part, full, full_part, most, to_next
  if is_bucket then
    _, suffix, ttl, _, _, drain, unit, unit_part, full, full_part, most = unpack(BUCKET, blob)
    to_next = drain - unit_part
  elseif is_window then
    _, suffix, ttl, _, horizon, period, full, align, from, till = unpack(WINDOW, blob)
  else
    _, suffix, ttl, _, period, full = unpack(COUNTER, blob)
  end
  local length = SUFFIX_AT - 1 + #suffix

  while key < last_key do
    key = key + 1
    local found, mark, a, b = values[key], now, 0, 0
    local usual, stored, overlap = true, found or '', period
    if found then
      usual = #found == length and sub(found, SUFFIX_AT) == suffix
      if usual then
        mark, a, b = unpack(STATE, found)
        usual = mark <= now
      end
    end

    -- The state now.
    local passed = now - mark
    if is_bucket then
      usual = usual and a <= most and b < drain
      a = a - passed
      if a < 0 then a, b = 0, 0 end
    elseif is_window then
      usual = usual and a <= MOST and b <= horizon
      b = b - passed
      if a == 0 or b <= 0 then
        a, b = 0, period
        if align == CALENDAR then
          usual, b = usual and now >= from and now < till, till - now
        elseif align ~= FIRST_HIT then
          b = fmod(now - from, period)
          b = b < 0 and -b or period - b
        end
      end
    else
      usual = usual and a <= MOST and b <= MOST
      local elapsed = fmod(now, period)
      if passed > elapsed then a, b = 0, passed - elapsed <= period and a or 0 end
      overlap = period - elapsed
    end

    local last = at + plan[at]
    if usual then
      local charged = false
      for i = at + 1, last do
        local admitted, next_a, next_b = false, a + 1, b
        if is_bucket then
          next_a = a + unit
          if b >= to_next then
            next_a, next_b = next_a + 1, b - to_next
          else
            next_b = b + unit_part
          end
          admitted = next_a < full or next_a == full and next_b <= full_part
        elseif is_window then
          admitted = a < full
        else
          admitted = b < full - a or a < full and is_less(b, overlap, full - a, period)
        end
        if admitted then
          replies[plan[i]] = stored
          a, b, charged = next_a, next_b, true
          stored = pack(VALUE, now, a, b, suffix)
        else
          replies[plan[i]] = { 1, stored }
        end
      end
      if charged and found then
        call('SET', KEYS[key], stored, 'PX', ttl)
      elseif charged then
        -- MGET shows values that are no strings as nothing.
        usual = call('SET', KEYS[key], stored, 'PX', ttl, 'NX')
      end
    end
    if not usual then
      left_over = left_over or {}
      for i = at + 1, last do left_over[#left_over + 1] = { index, key, plan[i] } end
    end
    at = last + 1
  end
end
if at > #plan and not left_over then return replies end
