-- Fixed window: see fixed_window.rs. Where the windows of a calendar begin and end is known to Rust,
-- which says between which two instants the present one lies.

local function fixed_window()
  local window = {}
  local FIRST_HIT, CALENDAR = 1, 2

  function window.read(blob)
    local limit, _ = {}
    _, limit.suffix, limit.ttl, limit.memory, limit.horizon, limit.period, limit.full, limit.align,
      limit.from, limit.till = unpack('<BBc0Bc0I7I7I7I7BI7I7', blob)
    limit.unit, limit.unit_part = 1, 0
    return limit
  end

  -- How long the window that holds this instant, or begins with it, still lasts; nil: Rust knows.
  local function left_at(limit, at)
    if limit.align == FIRST_HIT then return limit.period end
    if limit.align == CALENDAR then
      if at < limit.from or at >= limit.till then return nil end
      return limit.till - at
    end
    local into = fmod(at - limit.from, limit.period)
    if into < 0 then into = into + limit.period end
    return limit.period - into
  end

  function window.open(limit, place, mark, count, left)
    if count > MOST or left > limit.horizon then return false end
    local at = mark > now and mark or now
    local passed = at - mark
    if count > 0 and passed < left then
      left = left - passed
    else
      count, left = 0, left_at(limit, at)
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
    return keep_for(limit, place.at, place.b)
  end

  function window.refund(limit, mark, count, left, cost, _, charged_at)
    if count > MOST or left > limit.horizon or limit.align == CALENDAR then return false end
    local passed = mark < now and now - mark or 0
    if count == 0 or passed >= left then return nil end
    if charged_at and charged_at - mark < left - limit.period then return nil end
    return count > cost and count - cost or 0, left, keep_for(limit, mark, left)
  end

  return window
end
