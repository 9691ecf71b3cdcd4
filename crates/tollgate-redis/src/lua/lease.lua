-- Who holds how much of a key's budget that it has not spent yet. Taking it is another question.
--
-- KEYS[1]  the book of one key under one limit
-- ARGV     instance (8 bytes), units it holds, units it wants more, the least that is worth it,
--          the most that all may hold together, microseconds it will hold them
-- Replies  {units granted, units that all hold then}
--
-- The book: for each instance 8 bytes of its name, units and the instant they expire, 7 bytes each.
local ENTRY, INSTANCES_MAX, LASTS_MAX = 22, 64, 1000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local me = ARGV[1]
local held, more, least, most, lasts =
  tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- What nobody can read is no book; all it can have held expires within a second.
local book = redis.pcall('GET', KEYS[1])
if type(book) ~= 'string' or #book % ENTRY ~= 0 or #book > ENTRY * INSTANCES_MAX then book = '' end

local others, entries = 0, {}
for at = 1, #book, ENTRY do
  local who = string.sub(book, at, at + 7)
  local units, expires = struct.unpack('<I7I7', book, at + 8)
  -- Nobody holds longer than a second: a later end was written by a clock that has gone back.
  if who ~= me and expires > now and expires <= now + LASTS_MAX then
    others = others + units
    entries[#entries + 1] = string.sub(book, at, at + ENTRY - 1)
  end
end

local granted = math.min(more, most - others - held)
if granted < least or #entries >= INSTANCES_MAX then granted = 0 end
if held + granted > 0 and #entries < INSTANCES_MAX then
  entries[#entries + 1] = me .. struct.pack('<I7I7', held + granted, now + lasts)
end
if #entries > 0 then
  redis.call('SET', KEYS[1], table.concat(entries), 'PX', '2000')
elseif book ~= '' then
  redis.call('DEL', KEYS[1])
end
return {granted, others + held + granted}
