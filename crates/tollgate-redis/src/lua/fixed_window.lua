-- Fixed window: see fixed_window.rs. Where the windows of a calendar begin and end is known to Rust,
-- which says between which two instants the present one lies.

-- How long the window that holds this instant, or begins with it, still lasts; nil: Rust knows.
local function left_at(align, period, from, till, at)
  if align == FIRST_HIT then return period end
  if align == CALENDAR then
    if at < from or at >= till then return nil end
    return till - at
  end
  local into = fmod(at - from, period)
  if into < 0 then into = into + period end
  return period - into
end

local function fixed_window()
  local window = {}

  function window.read(blob)
    local limit, _ = { unit = 1, unit_part = 0 }
    _, limit.suffix, limit.ttl, limit.memory, limit.horizon, limit.period, limit.full, limit.align,
      limit.from, limit.till = unpack(WINDOW, blob)
    return limit
  end

  function window.open(limit, place, mark, count, left)
    if count > MOST or left > limit.horizon then return false end
    local at = mark > now and mark or now
    local passed = at - mark
    if count > 0 and passed < left then
      left = left - passed
    else
      count, left = 0, left_at(limit.align, limit.period, limit.from, limit.till, at)
      if not left then return false end
    end
    place.at, place.a, place.b = at, count, left
    return true
  end

  function window.admits(limit, place, cost)
    return place.a <= limit.full - cost
  end

  function window.charge(_, place, cost)
    place.a = add(place.a, cost)
  end

  function window.ttl(limit, place)
    return keep_for(limit.ttl, limit.memory, place.at, place.b)
  end

  function window.refund(limit, mark, count, left, cost, _, charged_at)
    if count > MOST or left > limit.horizon or limit.align == CALENDAR then return false end
    local passed = mark < now and now - mark or 0
    if count == 0 or passed >= left then return nil end
    if charged_at and charged_at - mark < left - limit.period then return nil end
    return count > cost and count - cost or 0, left, keep_for(limit.ttl, limit.memory, mark, left)
  end

  return window
end
