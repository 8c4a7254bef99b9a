"""The statements of `RedisHistoryProvider`: each is one Lua script, so it is atomic.

A session has two keys. The first is a hash with all that was said, so that Redis expires and evicts it as
a whole: ``began`` (its first append, in microseconds of the server's clock), ``count`` (turns), ``added``
(turns that were ever added), ``version`` (how often turns were taken out); of the turn number N ``tN`` (its
text) and ``mN`` (its id); and ``iID`` (the run of the turn with this id). The second is a mark that outlives
it: until when the first one has to be there (``expires``), and when it was cleared last (``cleared``).

All scripts take the two keys, and what the caller saw of the session last: ``began``, ``added`` and the
instant of its expiry, or zeros. They return a code first: see `Code`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """The first number of a reply. A negative one says that turns are lost, and how."""

    THERE = 0
    MOVED = 1
    EVICTED = -1
    VANISHED = -2
    SHORTENED = -3
    DAMAGED = -4
    EXPIRED = -5


_STATE: Final = """
local turns, mark = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local head = redis.call('HMGET', turns, 'began', 'version', 'count', 'added')
local marked = redis.call('HMGET', mark, 'expires', 'cleared')
local began, version = tonumber(head[1] or 0), tonumber(head[2] or 0)
local count, added = tonumber(head[3] or 0), tonumber(head[4] or 0)
local must_last, cleared = tonumber(marked[1] or 0), tonumber(marked[2] or 0)
local function whole(number) return string.format('%.0f', number) end
local function is_damaged()
  return redis.call('EXISTS', turns) == 1
    and (began == 0 or redis.call('HLEN', turns) ~= 4 + 3 * count)
end
local function loss(first)
  local seen, seen_added, seen_expiry = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  if is_damaged() then return -4 end
  if began == 0 and must_last > now then return -1 end
  if began == 0 and must_last > 0 then return first > 0 and -5 or nil end
  if seen == 0 or cleared >= seen then return nil end
  if began == seen then
    if added < seen_added then return -3 end
    return nil
  end
  local ended = began
  if began == 0 then ended = now end
  if seen_expiry > ended then return -2 end
  if first > 0 then return -5 end
  return nil
end
local function keep_mark(kept_ms)
  redis.call('PEXPIRE', mark, whole(math.max(kept_ms, redis.call('PTTL', mark))))
end
local function expiry()
  local left = redis.call('PTTL', turns)
  if left == -1 then return now + 1e15 end
  return now + math.max(left - 1, 0) * 1000
end
"""

APPEND: Final = (
    _STATE
    + """
local code = loss(0)
if code then return {code} end
local ttl_ms, kept_ms, run = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
if began == 0 then began = now end
for at = 7, #ARGV, 2 do
  if redis.call('HSETNX', turns, 'i' .. ARGV[at], run) == 1 then
    redis.call('HSET', turns, 'm' .. count, ARGV[at], 't' .. count, ARGV[at + 1])
    count, added = count + 1, added + 1
  end
end
redis.call('HSET', turns, 'began', whole(began), 'version', version, 'count', count, 'added', added)
local expires_ms = math.ceil(now / 1000) + ttl_ms
redis.call('PEXPIREAT', turns, whole(expires_ms))
redis.call('HSET', mark, 'expires', whole(expires_ms * 1000))
keep_mark(kept_ms)
return {0, began, added, expiry(), version, count}
"""
)
"""Adds turns that the session does not know. ARGV from 4 on: the TTL and that of the mark, in milliseconds,
the run, then ids and texts in turn."""

READ: Final = (
    _STATE
    + """
local first, last, room = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local code = loss(first)
if code then return {code} end
local begun, known = tonumber(ARGV[7]), tonumber(ARGV[8])
if begun > 0 and (begun ~= began or known ~= version) then return {1} end
local reply = {0, began, added, began == 0 and 0 or expiry(), version, count}
for at = first, math.min(last, count) - 1 do
  local text = redis.call('HGET', turns, 't' .. at)
  if not text then return {-4} end
  table.insert(reply, text)
  room = room - #text
  if room <= 0 then break end
end
return reply
"""
)
"""Returns texts from one number to before another: at least one of them, and until `room` bytes are full.
ARGV from 4 on: the numbers, the room, and `began` and `version` of the part that was read before, or zeros."""

CLEAR: Final = (
    _STATE
    + """
redis.call('DEL', turns)
redis.call('HSET', mark, 'expires', 0, 'cleared', whole(now))
keep_mark(tonumber(ARGV[4]))
return {0}
"""
)
"""Deletes the session, and leaves a mark of the deletion. ARGV 4: the TTL of the mark, in milliseconds."""

CLEAR_RUN: Final = (
    _STATE
    + """
if is_damaged() then return {-4} end
local ids = {}
for at = 0, count - 1 do
  ids[at] = redis.call('HGET', turns, 'm' .. at)
  if not ids[at] then return {-4} end
end
local kept = 0
for at = 0, count - 1 do
  if redis.call('HGET', turns, 'i' .. ids[at]) == ARGV[5] then
    redis.call('HDEL', turns, 'i' .. ids[at], 'm' .. at, 't' .. at)
  else
    if kept < at then
      redis.call('HSET', turns, 'm' .. kept, ids[at])
      redis.call('HSET', turns, 't' .. kept, redis.call('HGET', turns, 't' .. at))
      redis.call('HDEL', turns, 'm' .. at, 't' .. at)
    end
    kept = kept + 1
  end
end
if kept == count then return {0} end
if kept > 0 then
  redis.call('HSET', turns, 'count', kept, 'version', version + 1)
else
  redis.call('DEL', turns)
  redis.call('HSET', mark, 'expires', 0, 'cleared', whole(now))
  keep_mark(tonumber(ARGV[4]))
end
return {0}
"""
)
"""Removes the turns of one run and renumbers later turns. ARGV from 4 on: the mark's TTL, the run."""
