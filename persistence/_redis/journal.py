"""RedisJournal: results of effects, written beside the commit that makes them durable.

Redis is outside correctness here: no caller waits for a write, a lookup takes 250 ms at most, and
what is lost, evicted or damaged only widens the crash window that the log leaves.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic_core import PydanticSerializationError, from_json, to_json
from redis.exceptions import ResponseError

from actors._kernel.json import JsonValue
from actors._kernel.runtime.effects import EffectId, EffectResult
from actors._kernel.runtime.ids import check_name
from persistence._redis.client import Command, Line, LineClosedError, Reply, open_redis, pack

if TYPE_CHECKING:
    from redis.asyncio import Redis

_log = logging.getLogger("callboard.redis")

TTL_S: Final = 24 * 3600
LOOKUP_LIMIT_S: Final = 0.25
"""Longest time of a lookup. Only recovery looks anything up."""
MAX_VALUE_BYTES: Final = 1024 * 1024
DIGEST_CHARS: Final = 32


@dataclass(slots=True)
class JournalCounters:
    """Counters of the results that the journal was given since the start.

    Attributes:
        kept: Acknowledged by Redis.
        dropped: Number of results that were given up: Redis was slow, gone, or refused them.
        oversized: Larger than 1 MiB, never sent.
    """

    kept: int = 0
    dropped: int = 0
    oversized: int = 0


class RedisJournal:
    """A `ResultCache` and a `Journal`. Usable while `running()`; nothing here ever raises for Redis.

    Everything goes over one connection, as `Line` does it. Values are write-once and leave by
    themselves after `ttl_s`, which nothing refreshes.

    Args:
        redis: The connection of `open_redis`.
        namespace: First part of all keys. No other deployment or database may use it, because its results
            could be taken for this one's.
        ttl_s: Seconds a result is kept; longer than a run may wait for its recovery.
    """

    def __init__(self, redis: Redis, *, namespace: str = "callboard", ttl_s: int = TTL_S) -> None:
        self.counters: JournalCounters = JournalCounters()
        self.namespace: str = check_name("namespace", namespace)
        self._line = Line(redis)
        self._ttl = b"%d" % ttl_s
        self._is_gone = self._is_logged_unusable = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send kept results while the block lasts. Results still queued at its end are only in the log."""
        async with self._line.running():
            yield

    def keep(self, key: str, payload: dict[str, JsonValue]) -> None:
        """Send a result to Redis, or queue it if Redis is away or slow; return at once, never raise.

        Values over 1 MiB are not kept; a full queue drops its oldest.
        """
        self._put(f"{self.namespace}:result:{key}", payload)

    async def find(self, key: str) -> dict[str, JsonValue] | None:
        """Return the result under `key`, or None if there is none or Redis does not answer within 250 ms."""
        return await self._get(f"{self.namespace}:result:{key}")

    async def record(self, result: EffectResult) -> None:
        """Send the result of an effect and do not wait for Redis, since the log is the truth."""
        self._put(
            f"{self.namespace}:journal:{result.effect_id}",
            {
                "status": result.status,
                "value": result.value,
                "error_type": result.error_type,
                "artifact_ref": result.artifact_ref,
            },
        )

    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        """Return the result of an effect, or None if there is none or Redis does not answer within 250 ms."""
        record = await self._get(f"{self.namespace}:journal:{effect_id}")
        if record is None:
            return None
        error, artifact = record.get("error_type"), record.get("artifact_ref")
        return EffectResult(
            effect_id,
            "ok" if record.get("status") == "ok" else "error",
            record.get("value"),
            None if error is None else str(error),
            None if artifact is None else str(artifact),
        )

    def _put(self, name: str, payload: dict[str, JsonValue]) -> None:
        try:
            text = encode(name, payload)
        except (PydanticSerializationError, UnicodeEncodeError):
            self.counters.dropped += 1  # the log refuses it too, and says so
            return
        if len(text) > MAX_VALUE_BYTES:
            self.counters.oversized += 1
            return
        # NX: a value is written once, so a command that is sent again after a lost reply changes nothing.
        command = pack(b"SET", name.encode(), text, b"NX", b"EX", self._ttl)
        self._line.send(Command(command, self._on_reply))

    def _on_reply(self, reply: Reply) -> None:
        if isinstance(reply, Exception):
            self.counters.dropped += 1
            self._log_outage(reply)
        else:
            self.counters.kept += 1
            if self._is_gone:
                self._is_gone = False
                _log.info("Redis is back", extra={"dropped": self.counters.dropped})

    async def _get(self, name: str) -> dict[str, JsonValue] | None:
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def set_answer(reply: Reply) -> None:
            if not answer.done():
                answer.set_result(reply)

        self._line.send(Command(pack(b"GET", name.encode()), set_answer))
        try:
            async with asyncio.timeout(LOOKUP_LIMIT_S):
                reply = await answer
        except TimeoutError:
            self._log_outage(TimeoutError(f"no answer within {LOOKUP_LIMIT_S * 1000:g} ms"))
            return None
        if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
            self._log_unusable(name, str(reply))
            return None
        if isinstance(reply, Exception):
            self._log_outage(reply)
            return None
        try:
            return None if reply is None else decode(name, reply)
        except ValueError as exc:
            self._log_unusable(name, str(exc))
            return None

    def _log_outage(self, problem: Exception) -> None:
        if not self._is_gone and not isinstance(problem, LineClosedError):
            self._is_gone = True
            _log.warning(
                "Redis does not answer; until it does, results are only in the log",
                extra={"problem": f"{type(problem).__name__}: {problem}"},
            )

    def _log_unusable(self, name: str, problem: str) -> None:
        if not self._is_logged_unusable:
            self._is_logged_unusable = True
            _log.warning(
                "a result in Redis is damaged and was ignored; others like it will not be reported",
                extra={"key": name, "problem": problem},
            )


@asynccontextmanager
async def open_redis_journal(
    url: str, *, namespace: str = "callboard", ttl_s: int = TTL_S
) -> AsyncIterator[RedisJournal]:
    """Yield a running `RedisJournal`; `Runtime(results=...)` takes it. See `open_redis`, `RedisJournal`.

    Raises:
        RedisUrlError: The URL cannot work.
        InvalidNameError: `namespace` is not a name.
    """
    async with open_redis(url) as redis:
        journal = RedisJournal(redis, namespace=namespace, ttl_s=ttl_s)
        async with journal.running():
            yield journal


def encode(name: str, payload: dict[str, JsonValue]) -> bytes:
    """Return a value as it is stored: the digest of name and text, a space, the JSON text."""
    text = to_json(payload, inf_nan_mode="constants")
    return _digest(name, text) + b" " + text


def decode(name: str, data: object) -> dict[str, JsonValue]:
    """Return what `encode` was given.

    Raises:
        ValueError: It is not exactly what was stored under this name.
    """
    if not isinstance(data, bytes):
        raise ValueError("it is not a string of bytes")  # noqa: TRY004 - one error for all damage
    digest, _, text = data.partition(b" ")
    if digest != _digest(name, text):
        raise ValueError("its digest does not fit")
    payload = from_json(text)
    if not isinstance(payload, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - one error for all damage
    return payload


def _digest(name: str, text: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + text).hexdigest()[:DIGEST_CHARS].encode()
