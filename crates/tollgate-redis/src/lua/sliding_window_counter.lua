-- Sliding window counter: see sliding_window_counter.rs. Instead of the quotient that the formula has,
-- two products are compared, exactly.

-- floor(previous * overlap / period) <= room, without the division.
local function fits(previous, overlap, room, period)
  if room < 0 then return false end
  return previous <= room or is_less(previous, overlap, room + 1, period)
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
