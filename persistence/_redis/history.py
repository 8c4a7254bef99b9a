"""RedisHistoryProvider: conversations that are read and written fast, and that may be forgotten.

Each append gives the whole session its time to live anew. Turns that are missing before that time are
noticed, as far as Redis or this process still knows of them, and then nothing of the session is given out.

The statements of `RedisHistoryProvider`: each is one Lua script, so it is atomic.

A session has two keys. The first is a hash with all that was said, so that Redis expires and evicts it as
a whole: ``began`` (its first append, in microseconds of the server's clock), ``count`` (turns), ``added``
(turns that were ever added), ``version`` (how often turns were taken out); of the turn number N ``tN`` (its
text) and ``mN`` (its id); and ``iID`` (the run of the turn with this id). The second is a mark that outlives
it: until when the first one has to be there (``expires``), and when it was cleared last (``cleared``).

All scripts take the two keys, and what the caller saw of the session last: ``began``, ``added`` and the
instant of its expiry, or zeros. They return a code first: see `Code`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from pydantic_core import PydanticSerializationError, from_json, to_json
from typing_extensions import override

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import check_page, check_turn, message_json
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, check_name
from actors._kernel.stores.administration import (
    ERASE_BATCH,
    Erasable,
    EraseCount,
    EraseRequest,
    EraseScope,
)
from actors._kernel.stores.conversations import HistoryProvider
from actors._kernel.text import check_name_of
from actors.errors import MAX_WAIT_S, ContractError, HistoryLostError, NotSerializableError
from persistence._redis.client import open_redis
from persistence._redis.errors import REDIS_ERRORS, translate_redis

if TYPE_CHECKING:
    from redis.asyncio import Redis


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


HISTORY_TTL_S: Final = 7 * 24 * 3600.0
LEAST_TTL_S: Final = 0.001
ANSWER_S: Final = 10.0
"""Seconds that one answer may take: it may hold a turn of many megabytes."""
PART_BYTES: Final = 1024 * 1024
"""About so much of a session is read at once, so that Redis answers others meanwhile."""
CALLS_AT_ONCE: Final = 32
"""Most calls under way; others wait. The client refuses more than 100 connections."""
SESSIONS_REMEMBERED: Final = 10_000
"""Number of most recently used sessions whose state a provider remembers."""
MARK_TTLS: Final = 2
"""Factor of the TTL of a session's mark to the session's TTL."""

_PROBLEMS: Final = {
    Code.EVICTED: "its turns are gone before their time: Redis evicted them, or somebody deleted them",
    Code.VANISHED: "Redis has lost it: it was flushed, started without its data, or failed over",
    Code.SHORTENED: "its newest turns are gone: Redis failed over, or was restored from a back-up",
    Code.DAMAGED: "a part of it is missing or was changed",
    Code.EXPIRED: "it expired between two pages",
}


@dataclass(frozen=True, slots=True)
class _SessionMark:
    """A session as it was when it was seen last. Instants are microseconds of the server's clock."""

    began: int = 0
    added: int = 0
    expires: int = 0


class RedisHistoryProvider(HistoryProvider, Erasable):
    """A fast `HistoryProvider` whose sessions live for `ttl_s` after their last append.

    What has no id is kept once for each call, also if its answer is lost and it is sent again.

    Args:
        redis: The connection of `open_redis`.
        namespace: First part of all keys; one for each deployment.
        ttl_s: Seconds from a session's last append to its end, as a whole.

    Raises:
        ContractError: `ttl_s` is not a positive number of seconds, of ten years at most.
        InvalidNameError: `namespace` is not a name.
    """

    erased_as = "redis history"

    def __init__(
        self, redis: Redis, *, namespace: str = "callboard", ttl_s: float = HISTORY_TTL_S
    ) -> None:
        if not LEAST_TTL_S <= ttl_s <= MAX_WAIT_S:
            msg = f"ttl_s={ttl_s!r}: give seconds, from {LEAST_TTL_S} to {MAX_WAIT_S:.0f}"
            raise ContractError(msg)
        self.namespace: str = check_name("namespace", namespace)
        self._ttl_ms = int(ttl_s * 1000)
        self._redis = redis
        self._append = redis.register_script(APPEND)
        self._read = redis.register_script(READ)
        self._clear = redis.register_script(CLEAR)
        self._clear_run = redis.register_script(CLEAR_RUN)
        self._marks: OrderedDict[tuple[AgentId, str], _SessionMark] = OrderedDict()
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)

    def keys_of(self, agent_id: AgentId, session_id: str) -> tuple[str, str]:
        """Return the keys of a session: of its turns, and of its mark. A cluster keeps both in one slot.

        Raises:
            InvalidTextError: `session_id` cannot be a name.
        """
        check_name_of("a session's id", session_id)
        tag = f"{quote(str(agent_id), safe='/')}:{quote(session_id, safe='')}"
        stem = f"{self.namespace}:history:{{{tag}}}"
        return f"{stem}:turns", f"{stem}:mark"

    @override
    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        await self.append_many(agent_id, [message], session_id=session_id, run_id=run_id)

    @override
    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        check_name_of("a run's id", run_id)
        words: list[str | bytes | int] = [self._ttl_ms, self._mark_ttl_ms, run_id.encode()]
        for message in messages:
            text = _text_of(message)
            # A turn without an id gets one here: sent again after a lost reply, it is added once.
            key = f"a{secrets.token_hex(16)}" if message.turn is None else f"g{message.turn}"
            words += (key.encode(), text)
        if messages:
            await self._ask("adding turns", self._append, (agent_id, session_id), *words)

    @override
    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        check_page(limit, offset)
        session = (agent_id, session_id)
        end = _FARTHEST if limit is None else min(offset + limit, _FARTHEST)
        texts = await self._page(session, min(offset, _FARTHEST), end, PART_BYTES)
        if texts is None:  # turns were taken out between two parts
            # In one part, which no other call can come between.
            texts = await self._page(session, min(offset, _FARTHEST), end, _FARTHEST)
        try:
            return [ChatMessage.model_validate(from_json(text)) for text in texts or ()]
        except ValueError as exc:
            raise _lost_error(session, Code.DAMAGED) from exc

    @override
    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        session = (agent_id, session_id)
        await self._ask("clearing a session", self._clear, session, self._mark_ttl_ms)
        self._marks.pop(session, None)

    @override
    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        if run_id:
            check_name_of("a run's id", run_id)
            words = (self._mark_ttl_ms, run_id.encode())
            session = (agent_id, session_id)
            await self._ask("clearing turns of a run", self._clear_run, session, *words)

    @override
    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        words = (0, 0, 0, 0, 0)
        reply = await self._ask("counting turns", self._read, (agent_id, session_id), *words)
        return int(reply[_COUNT])

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        """Sessions in Redis are removed; their marks stay and record the erase.

        Keys are found by SCAN, about `limit` at a time. A mark, whose key has the names of agent
        and session, stays for twice the TTL.
        """
        sessions, after = await self._scan(what, cursor, limit)
        for agent_id, session_id in sessions:
            await self.clear(agent_id, session_id=session_id)
        return EraseCount({"sessions": len(sessions)}, after)

    @override
    async def count(self, what: EraseRequest) -> dict[str, int]:
        count, cursor, is_done = 0, None, False
        while not is_done:
            sessions, cursor = await self._scan(what, cursor, ERASE_BATCH)
            count, is_done = count + len(sessions), cursor is None
        return {"sessions": count}

    async def _scan(
        self, what: EraseRequest, cursor: str | None, limit: int
    ) -> tuple[list[tuple[AgentId, str]], str | None]:
        """Return sessions of the request, and where the scan goes on."""
        if what.scope is EraseScope.SUBJECT:
            return [], None
        if what.agent is not None and what.session is not None:
            session = (what.agent, what.session)
            key_count = await self._redis_call(
                "looking for a session", "EXISTS", self.keys_of(*session)[0]
            )
            return ([session] if key_count else []), None
        stem = f"{self.namespace}:history:{{"
        tenant_prefix = "" if what.tenant == DEFAULT_TENANT else f"{what.tenant}%3A"
        agent = tenant_prefix if what.agent is None else f"{quote(str(what.agent), safe='/')}:"
        words = (cursor or "0", "MATCH", f"{stem}{agent}*:turns", "COUNT", limit)
        after, keys = await self._redis_call("looking for sessions", "SCAN", *words)
        tags = (key.decode().removeprefix(stem).removesuffix("}:turns") for key in keys)
        parts = (tag.partition(":") for tag in tags)
        sessions = [
            (AgentId.parse(unquote(agent_tag)), unquote(name)) for agent_tag, _, name in parts
        ]
        after = int(after)
        return [s for s in sessions if what.covers(s[0])], str(after) if after else None

    async def _redis_call(self, doing: str, *words: str | int) -> Any:
        try:
            async with self._slots:
                return await self._redis.execute_command(*words)  # type: ignore[no-untyped-call]
        except REDIS_ERRORS as exc:
            raise translate_redis(exc, doing) from exc

    @property
    def _mark_ttl_ms(self) -> int:
        return MARK_TTLS * self._ttl_ms

    async def _page(
        self, session: tuple[AgentId, str], first: int, end: int, room: int
    ) -> list[bytes] | None:
        """Return turns from one number to before another, or None if others were taken out meanwhile."""
        texts: list[bytes] = []
        began, version = 0, 0
        while True:
            part = (first + len(texts), end, room, began, version)
            reply = await self._ask("reading a session", self._read, session, *part)
            if reply[0] == Code.MOVED:
                return None
            _, began, _, _, version, count, *part_texts = reply
            texts += part_texts
            if not part_texts or first + len(texts) >= min(end, count):
                return texts

    async def _ask(
        self, doing: str, script: Any, session: tuple[AgentId, str], *words: str | bytes | int
    ) -> list[Any]:
        """Execute a script for a session and return its reply. It is sent again if the reply is lost.

        Raises:
            HistoryLostError: Turns of the session are gone.
            RedisUnreachableError: Redis is away, or slow.
            RedisRefusedError: Redis refuses the script.
        """
        mark = self._marks.get(session, _SessionMark())
        keys = self.keys_of(*session)
        args = (mark.began, mark.added, mark.expires, *words)
        try:
            async with self._slots:
                reply: list[Any] = await script(keys=keys, args=args)
        except REDIS_ERRORS as exc:
            raise translate_redis(exc, doing) from exc
        if reply[0] < 0:
            raise _lost_error(session, Code(reply[0]))
        if len(reply) > 1 and reply[1]:
            self._remember(session, _SessionMark(*reply[1 : _EXPIRES + 1]))
        return reply

    def _remember(self, session: tuple[AgentId, str], mark: _SessionMark) -> None:
        previous = self._marks.get(session, mark)
        if (mark.began, mark.added) >= (
            previous.began,
            previous.added,
        ):  # else the reply was overtaken
            self._marks[session] = mark
        self._marks.move_to_end(session)
        if len(self._marks) > SESSIONS_REMEMBERED:
            self._marks.popitem(last=False)


@asynccontextmanager
async def open_redis_history(
    url: str, *, ttl_s: float = HISTORY_TTL_S, namespace: str = "callboard"
) -> AsyncIterator[RedisHistoryProvider]:
    """Yield a `RedisHistoryProvider`. See `open_redis` for the connection.

    Raises:
        RedisUrlError: The URL cannot work.
        ContractError: `ttl_s` or `namespace` cannot be used.
    """
    async with open_redis(url, answer_s=ANSWER_S) as redis:
        yield RedisHistoryProvider(redis, namespace=namespace, ttl_s=ttl_s)


_EXPIRES: Final = 3
_COUNT: Final = 5
_FARTHEST: Final = 2**53
"""Greatest integer that Lua's numbers hold exactly."""


def _text_of(message: ChatMessage) -> bytes:
    check_turn(message)
    try:
        return to_json(message_json(message), inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeEncodeError, ValueError) as exc:
        raise NotSerializableError("turn", type(message).__name__, str(exc)) from exc


def _lost_error(session: tuple[AgentId, str], code: Code) -> HistoryLostError:
    return HistoryLostError(str(session[0]), session[1], _PROBLEMS[code])
