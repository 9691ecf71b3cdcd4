-- What all parts of the script share. script.rs puts the files together, this one first.
--
-- ARGV: the asker's instant or '' for this server's own; one byte for each request; the limits; and
-- from the end backwards what is to be said of requests that are more than one unit of one limit.
-- KEYS: those of the requests, in order.
--
-- Numbers are doubles. Every number here is a whole one below 2^53, and sums that could reach it are
-- compared as differences instead: nothing is ever rounded. Rust does whatever needs a division or
-- happens rarely: then the reply begins with ODD, says what is stored, and nothing was changed.

local KEYS, ARGV = KEYS, ARGV
local call, pcall = redis.call, redis.pcall
local sub, byte, fmod = string.sub, string.byte, math.fmod
local pack, unpack = struct.pack, struct.unpack

local ODD, MOST = -1, 9007199254740991
-- A mark that is no further ahead of now than this, or than a limit's horizon, is no jump of the clock.
local JUMP_MIN = 1000000
-- A state is three numbers, 7 bytes each, and the suffix that tells which numbers wrote it.
local STATE, SUFFIX_AT = '<I7I7I7', 22
-- Bytes of the longest log: 1,024 entries, and what comes before them. Longer values are of others.
local LONGEST = 14 + 17 + 1024 * 14

local now = ARGV[1]
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(now)
end

-- Which algorithm it is of, if all that is asked is one unit of one limit: so are nearly all calls in a
-- cluster, where few requests share a slot. Such a call is answered before the functions that it has no
-- use for are made, which would cost more than its answer.
local alone = ARGV[2] == '\1' and byte(ARGV[3])

-- How long to keep a state that lasts until `us` after the instant `at`, if a limit's states usually
-- last `memory` and are kept for `ttl`.
local function keep_for(ttl, memory, at, us)
  if memory == 0 or at <= now and us <= memory then return ttl end
  -- What a debt was refunded of may be older than all that is left of it.
  local left = at - now + us
  if left < 0 then left = 0 end
  return string.format('%.0f', math.ceil(left / 1000) + 1000)
end

-- A request left to Rust. What others wrote may be of any length: it is not sent around.
local function odd(value)
  return { ODD, #value <= LONGEST and value or 0 }
end

-- The sum, or the most that a counter holds.
local function add(a, b)
  if a > MOST - b then return MOST end
  return a + b
end
