-- What the algorithms share from here on: requests with a body, and what take.lua has left over.

local ODD = -1
-- A mark that is no further ahead of now than this, or than a limit's horizon, is no jump of the clock.
local JUMP_MIN = 1000000
-- Bytes of the longest log: 1,024 entries, and what comes before them. Longer values are of others.
local LONGEST = 14 + 17 + 1024 * 14

-- The excess of a bucket is at the end of its value: two more numbers, or one if it is units.
local EXCESS, EXCESS_LENGTH = '<I7I7', 14
local EXCESS_UNITS, EXCESS_UNITS_LENGTH = '<I7', 7

-- How long to keep a state that lasts until `us` after the instant `at`, if a limit's states usually
-- last `memory` and are kept for `ttl`.
local function keep_for(ttl, memory, at, us)
  if memory == 0 or at <= now and us <= memory then return ttl end
  -- What a debt was refunded of may be older than all that is left of it.
  local left = at - now + us
  if left < 0 then left = 0 end
  return string.format('%.0f', math.ceil(left / 1000) + 1000)
end

-- The sum, or the most that a counter holds.
local function add(a, b)
  if a > MOST - b then return MOST end
  return a + b
end
