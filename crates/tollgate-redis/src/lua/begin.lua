-- What all parts of the script share. script.rs puts the files together, this one first.
--
-- ARGV: the caller's instant, or '' for this server's clock; the plan; the limits; and from the end
-- backwards a body for each request that is more than one unit of one limit.
-- KEYS: first those of which single units are taken, in the order of the plan; then those of the bodies.
--
-- The plan is a string of bytes. First the number of keys of which single units are taken. Then for each
-- of their limits: its number and the number of its keys; and for each key: the number of requests and
-- the index of each one's reply. At the end the index of the reply to each body.
-- A request with a body shares no key with requests for single units, so their order does not matter.
--
-- The reply is the instant and one element for each request: what was stored before, alone if all was
-- charged, or a list of a number and what was stored under each key. The number has a bit for each
-- check that refused, or is ODD or SWAPPED. Where nothing was stored it says '', where something is that
-- no value of ours can be, 0.
--
-- Numbers are doubles. Every number here is a whole one below 2^53, and sums that could reach it are
-- compared as differences instead: nothing is ever rounded. Rust does whatever needs a division or
-- happens rarely: then the reply begins with ODD, says what is stored, and nothing was changed.

local KEYS, ARGV = KEYS, ARGV
local call, pcall, spread = redis.call, redis.pcall, unpack
local sub, byte, fmod = string.sub, string.byte, math.fmod
local pack, unpack = struct.pack, struct.unpack

local MOST = 9007199254740991
-- A state is three numbers, 7 bytes each, and the suffix that tells which numbers wrote it.
local STATE, VALUE, SUFFIX_AT = '<I7I7I7', '<I7I7I7c0', 22
-- Limits as they are described.
local BUCKET, WINDOW, COUNTER =
  '<BBc0Bc0I7I7I7I7I7I7I7I7I7', '<BBc0Bc0I7I7I7I7BI7I7', '<BBc0Bc0I7I7I7'
-- Alignments of fixed windows; 0 is that to the Unix epoch.
local FIRST_HIT, CALENDAR = 1, 2

local now = ARGV[1]
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(now)
end
