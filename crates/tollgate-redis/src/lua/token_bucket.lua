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

  function bucket.admits(limit, place, cost, cost_part)
    local whole, part = more(limit, place.a, place.b, cost, cost_part)
    return whole < limit.full or whole == limit.full and part <= limit.full_part
  end

  function bucket.is_idle(place)
    return place.a == 0 and place.b == 0
  end

  function bucket.charge(limit, place, cost, cost_part)
    local whole, part = more(limit, place.a, place.b, cost, cost_part)
    if whole > limit.most or whole == limit.most and part > limit.most_part then
      whole, part = limit.most, limit.most_part
    end
    place.a, place.b = whole, part
  end

  -- What is charged for refused requests ends at one capacity of debt; what was forced beyond stays.
  function bucket.charge_refused(limit, place, cost, cost_part)
    local before, before_part = place.a, place.b
    local whole, part = more(limit, limit.full, limit.full_part, limit.full, limit.full_part)
    bucket.charge(limit, place, cost, cost_part)
    if place.a > whole or place.a == whole and place.b > part then
      if before > whole or before == whole and before_part > part then
        whole, part = before, before_part
      end
      place.a, place.b = whole, part
    end
  end

  function bucket.ttl(limit, place)
    return keep_for(limit.ttl, limit.memory, place.at, place.a + 1)
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
