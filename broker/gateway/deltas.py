"""Deltas between hosts, and hints of ends, over core NATS: never stored, lost where nobody listens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeAlias, get_args

from nats.aio.subscription import Subscription
from nats.errors import MaxPayloadError
from pydantic_core import to_json

from actors.errors import NotSerializableError
from actors.kernel.json_data import check_json
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.live import Delta, DeltaKind
from broker.nats.client import NatsConnection
from broker.nats.reconnecting import Tasks
from broker.wire.subjects import Subjects

Handler: TypeAlias = "Callable[[bytes], None]"

MAX_OUTGOING: Final = 10_000
"""Messages that wait to be sent; of more the oldest are dropped."""
MAX_BEHIND: Final = 1_000
"""Pieces that a slow reader may be behind; of more the oldest are dropped."""
_KINDS: Final = get_args(DeltaKind)


class NatsDeltaBus:
    """See `DeltaBus`. A `ConnectionUser`: while its connection is lost, nothing is published or received."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects
        self._outgoing: deque[tuple[str, bytes]] = deque(maxlen=MAX_OUTGOING)
        self._handlers: dict[str, list[Handler]] = {}
        self._changed: set[str] = set()
        self._subscribed: dict[str, Subscription] = {}
        self._work = asyncio.Event()
        self._client: NatsConnection | None = None

    @property
    def is_connected(self) -> bool:
        """See `DeltaBus.is_connected`."""
        return self._client is not None

    def publish(self, delta: Delta) -> None:
        """See `DeltaBus.publish`."""
        if self._client is None:
            return
        facts = {
            "kind": delta.kind,
            "run": delta.run_id,
            "attempt": delta.attempt,
            "position": delta.position,
            "n": delta.n,
            "text": delta.text,
            **({} if delta.data is None else {"data": delta.data}),
        }
        self._send(self._subjects.live(delta.agent_id, delta.run_id), to_json(facts))

    def announce_end(self, agent_id: AgentId, run_id: RunId) -> None:
        """See `DeltaBus.announce_end`."""
        if self._client is not None:
            self._send(self._subjects.live_end(agent_id, run_id), b"")

    async def subscribe(self, agent_id: AgentId, run_id: RunId) -> AsyncGenerator[Delta, None]:
        """See `DeltaBus.subscribe`."""
        waiting: deque[Delta] = deque(maxlen=MAX_BEHIND)
        came = asyncio.Event()

        def handler(data: bytes) -> None:
            delta = _delta(data, agent_id, run_id)
            if delta is not None:
                waiting.append(delta)
                came.set()

        forget = self._subscribe_local(self._subjects.live(agent_id, run_id), handler)
        try:
            while True:
                await came.wait()
                came.clear()
                while waiting:
                    yield waiting.popleft()
        finally:
            forget()

    def watch_end(
        self, agent_id: AgentId, run_id: RunId, on_end: Callable[[], None]
    ) -> Callable[[], None]:
        """See `DeltaBus.watch_end`."""
        return self._subscribe_local(self._subjects.live_end(agent_id, run_id), lambda _: on_end())

    def _send(self, subject: str, data: bytes) -> None:
        self._outgoing.append((subject, data))
        self._work.set()

    def _subscribe_local(self, subject: str, handler: Handler) -> Callable[[], None]:
        self._handlers.setdefault(subject, []).append(handler)
        self._change(subject)

        def forget() -> None:
            handlers = self._handlers.get(subject, [])
            if handler in handlers:
                handlers.remove(handler)
            if not handlers:
                self._handlers.pop(subject, None)
            self._change(subject)

        return forget

    def _change(self, subject: str) -> None:
        self._changed.add(subject)
        self._work.set()

    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        """See `ConnectionUser.attach`."""
        del inbox
        self._subscribed, self._changed = {}, set(self._handlers)
        self._client = client
        self._work.set()
        tasks.start(self._pump(client), name="deltas")

    def detach(self) -> None:
        """See `ConnectionUser.detach`."""
        self._client = None
        self._outgoing.clear()

    async def leave(self) -> None:
        """See `ConnectionUser.leave`: runs that execute here go on telling."""

    async def shut(self) -> None:
        """See `ConnectionUser.shut`: nobody waits for deltas."""

    async def _pump(self, client: NatsConnection) -> None:
        while not client.lost.is_set():
            await self._work.wait()
            self._work.clear()
            while self._changed:
                await self._adjust(client, self._changed.pop())
            while self._outgoing:
                subject, data = self._outgoing.popleft()
                with contextlib.suppress(MaxPayloadError):  # one piece less is no harm; no pump is
                    await client.publish(subject, data)

    async def _adjust(self, client: NatsConnection, subject: str) -> None:
        """Subscribe or not, as somebody here wants to hear or not."""
        known = self._subscribed.get(subject)
        if subject in self._handlers and known is None:

            def sink(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
                for handler in tuple(self._handlers.get(subject, ())):
                    handler(data)

            self._subscribed[subject] = await client.listen(subject, sink)
        elif subject not in self._handlers and known is not None:
            del self._subscribed[subject]
            await client.forget(known)


def _delta(data: bytes, agent_id: AgentId, run_id: RunId) -> Delta | None:
    # Of another host, perhaps of another version: what cannot be read is nothing to show.
    try:
        facts = json.loads(data)
        if facts["kind"] not in _KINDS:
            return None
        found = facts.get("data")
        check_json(found, where="delta")
        return Delta(
            run_id=run_id,
            agent_id=agent_id,
            attempt=int(facts["attempt"]),
            position=str(facts["position"]),
            n=int(facts["n"]),
            kind=facts["kind"],
            text=str(facts["text"]),
            data=found,
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, NotSerializableError):
        return None
