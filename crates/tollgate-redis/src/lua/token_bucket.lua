-- Token bucket: see token_bucket.rs. Debt is a mixed number, whole microseconds of refill and ticks of
-- a begun one, of which `drain` make a microsecond. Time takes off whole microseconds.

local function token_bucket()
  local bucket = {}

  function bucket.read(blob)
    local limit, _ = {}
    _, limit.suffix, limit.ttl, limit.memory, limit.horizon, limit.drain, limit.unit, limit.unit_part,
      limit.full, limit.full_part, limit.most, limit.most_part =
      unpack(BUCKET, blob)
    return limit
  end

  -- The debt after `cost` more.
  local function more(limit, whole, part, cost, cost_part)
    whole = whole + cost
    if cost_part > 0 then
      local to_next = limit.drain - cost_part
      if part >= to_next then return whole + 1, part - to_next end
      return whole, part + cost_part
    end
    return whole, part
  end

  function bucket.open(limit, place, mark, whole, part)
    if whole > limit.most or part >= limit.drain then return false end
    if mark <= now then
      whole = whole - (now - mark)
      if whole < 0 then whole, part = 0, 0 end
      mark = now
    end
    place.at, place.a, place.b = mark, whole, part
    return true
  end

  -- Excess, which a change of numbers has made, is a mixed number, too, or whole units. Time refills the debt
  -- first and then the excess. What flows back of units is left to Rust.
  function bucket.open_excess(limit, place, mark, whole, part, value)
    local beyond = now - mark - whole
    if #value == EXCESS_UNITS_LENGTH then
      local units = unpack(EXCESS_UNITS, value)
      if units > MOST or beyond > 0 then return false end
      place.excess_units = units
      return true
    end
    local excess, excess_part = unpack(EXCESS, value)
    if excess > MOST or excess_part >= limit.drain then return false end
    if beyond > 0 then
      excess = excess - beyond
      if part > 0 then
        local to_next = limit.drain - part
        if excess_part >= to_next then
          excess, excess_part = excess + 1, excess_part - to_next
        else
          excess_part = excess_part + part
        end
      end
      if excess < 0 then excess, excess_part = 0, 0 end
    end
    if excess > 0 or excess_part > 0 then place.excess, place.excess_part = excess, excess_part end
    return true
  end

  function bucket.admits(limit, place, cost, cost_part)
    local whole, part = more(limit, place.a, place.b, cost, cost_part)
    return whole < limit.full or whole == limit.full and part <= limit.full_part
  end

  function bucket.is_idle(place)
    return place.a == 0 and place.b == 0
  end

  local function is_above(whole, part, limit_whole, limit_part)
    return whole > limit_whole or whole == limit_whole and part > limit_part
  end

  local function add_debt(limit, place, cost, cost_part)
    local whole, part = more(limit, place.a, place.b, cost, cost_part)
    if is_above(whole, part, limit.most, limit.most_part) then
      whole, part = limit.most, limit.most_part
    end
    place.a, place.b = whole, part
  end

  -- Rounds debt beside excess up to whole microseconds if it is more ticks than a number can be, as
  -- token_bucket/excess.rs does.
  local function settle(limit, place)
    if not place.excess and not place.excess_units then return end
    local most_part = fmod(MOST, limit.drain)
    local most = (MOST - most_part) / limit.drain
    if place.b > 0 and is_above(place.a, place.b, most, most_part) then
      place.a, place.b = place.a + 1, 0
      if is_above(place.a, place.b, limit.most, limit.most_part) then
        place.a, place.b = limit.most, limit.most_part
      end
    end
  end

  function bucket.charge(limit, place, cost, cost_part)
    add_debt(limit, place, cost, cost_part)
    settle(limit, place)
  end

  -- What is charged for refused requests ends at one capacity of debt; what was forced beyond stays.
  function bucket.charge_refused(limit, place, cost, cost_part)
    local before, before_part = place.a, place.b
    local whole, part = more(limit, limit.full, limit.full_part, limit.full, limit.full_part)
    add_debt(limit, place, cost, cost_part)
    if is_above(place.a, place.b, whole, part) then
      if is_above(before, before_part, whole, part) then whole, part = before, before_part end
      place.a, place.b = whole, part
    end
    settle(limit, place)
  end

  function bucket.ttl(limit, place)
    local excess = 0
    if place.excess then
      excess = place.excess + 1
    elseif place.excess_units then
      -- The only rounded number here, and a little too long. Longer than centuries is for ever.
      excess = place.excess_units * (limit.unit + limit.unit_part / limit.drain) * 1.000001 + 1
      if excess > MOST then excess = MOST end
    end
    return keep_for(limit.ttl, limit.memory, place.at, place.a + 1 + excess)
  end

  -- Taken off as of the mark, so the debt is not drained first.
  function bucket.refund(limit, mark, whole, part, cost, cost_part, charged_at)
    local served_at = mark > now and mark or now
    if whole > limit.most or part >= limit.drain then return false end
    if charged_at and served_at - charged_at >= limit.horizon then return nil end
    if part < cost_part then
      whole, part = whole - 1, part + (limit.drain - cost_part)
    else
      part = part - cost_part
    end
    whole = whole - cost
    if whole < 0 then whole, part = 0, 0 end
    return whole, part, keep_for(limit.ttl, limit.memory, mark, whole + 1)
  end

  return bucket
end
