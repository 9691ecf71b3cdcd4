-- redis-cell's CL.THROTTLE as a script, with the semantics that it publishes (GCRA).
-- KEYS[1]: whose; ARGV: max_burst, count, period in seconds, quantity.
-- Reply: limited, limit, remaining, retry after, reset after; seconds, -1 for no retry.
local limit = tonumber(ARGV[1]) + 1
local interval_us = tonumber(ARGV[3]) * 1000000 / tonumber(ARGV[2])
local increment_us = interval_us * tonumber(ARGV[4])
local tolerance_us = interval_us * limit
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local full_at_us = math.max(now_us, tonumber(redis.call('GET', KEYS[1]) or 0))
local until_full_us = full_at_us + increment_us - now_us

-- Whole milliseconds; then a second that has begun counts.
local function seconds(us)
  return math.ceil(math.floor(us / 1000) / 1000)
end

local limited, retry = 0, -1
if until_full_us > tolerance_us then
  limited = 1
  if increment_us <= tolerance_us then
    retry = seconds(until_full_us - tolerance_us)
  end
  until_full_us = full_at_us - now_us
elseif increment_us > 0 then
  local text = string.format('%.0f', now_us + until_full_us)
  redis.call('SET', KEYS[1], text, 'PX', math.ceil(until_full_us / 1000))
end
local remaining = math.max(0, math.floor((tolerance_us - until_full_us) / interval_us))
return { limited, limit, remaining, retry, seconds(until_full_us) }
