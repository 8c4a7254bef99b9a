"""Subjects of core NATS on which processes notify each other, and hints on them that a log has grown.

They go over one connection at a time. A hint is published while another process has said that it follows the
log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from nats.aio.subscription import Subscription
from nats.errors import MaxPayloadError
from pydantic_core import from_json, to_json
from typing_extensions import override

from actors._kernel.runtime.hints import FollowedLogs
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import RunLogEntry
from broker._nats.client import NatsConnection, Tasks
from broker._wire.subjects import Subjects, hint_subject

Handler: TypeAlias = "Callable[[bytes], None]"

MAX_OUTGOING: Final = 10_000
"""Messages that wait to be sent; of more the oldest are dropped."""


class CoreSubjects:
    """A `ConnectionUser` that publishes, and subscribes to subjects while this process has subscribers.

    Messages leave in the order in which they were given. While the connection is lost, nothing is published or
    received.
    """

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects
        self._outgoing: deque[tuple[str, bytes, str]] = deque(maxlen=MAX_OUTGOING)
        self._handlers: dict[str, list[Handler]] = {}
        self._changed_subjects: set[str] = set()
        self._subscriptions: dict[str, Subscription] = {}
        self._work = asyncio.Event()
        self._client: NatsConnection | None = None

    @property
    def is_connected(self) -> bool:
        """True if what other processes publish arrives at the moment."""
        return self._client is not None

    def _send(self, subject: str, data: bytes, reply: str = "") -> None:
        """Publish after the pending subscriptions. Without a connection, drop the message."""
        client = self._client
        if client is None:
            return
        waits = self._changed_subjects or self._outgoing
        if waits or not client.publish_now(subject, data, reply):
            self._outgoing.append((subject, data, reply))
            self._work.set()

    def _subscribe_local(self, subject: str, handler: Handler) -> Callable[[], None]:
        """Call `handler` with what arrives on a subject; return what ends that."""
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
        self._changed_subjects.add(subject)
        self._work.set()

    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        """Subscribe on a new connection to the subjects that have handlers; `tasks` end with it."""
        del inbox
        self._subscriptions, self._changed_subjects = {}, set(self._handlers)
        self._client = client
        self._work.set()
        tasks.start(self._pump(client), name="core subjects")

    def detach(self) -> None:
        """Forget the connection that was lost, and the messages that wait to be sent."""
        self._client = None
        self._outgoing.clear()

    async def leave(self) -> None:
        """Do nothing: runs that execute here still publish their pieces."""

    async def shut(self) -> None:
        """Do nothing: no caller waits for an answer."""

    async def _pump(self, client: NatsConnection) -> None:
        while not client.lost.is_set():
            await self._work.wait()
            self._work.clear()
            while self._changed_subjects:
                await self._adjust(client, self._changed_subjects.pop())
            while self._outgoing:
                subject, data, reply = self._outgoing.popleft()
                # One message less is no harm; no pump is.
                with contextlib.suppress(MaxPayloadError):
                    await client.publish(subject, data, reply)

    async def _adjust(self, client: NatsConnection, subject: str) -> None:
        """Subscribe if this process has subscribers, else unsubscribe."""
        subscription = self._subscriptions.get(subject)
        if subject in self._handlers and subscription is None:

            def sink(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
                for handler in tuple(self._handlers.get(subject, ())):
                    handler(data)

            self._subscriptions[subject] = await client.listen(subject, sink)
        elif subject not in self._handlers and subscription is not None:
            del self._subscriptions[subject]
            await client.forget(subscription)


class NatsLogHints(CoreSubjects):
    """The `LogHints` of NATS: one subject for followed logs, and one for each log."""

    def __init__(self, subjects: Subjects) -> None:
        super().__init__(subjects)
        self._followed_logs = FollowedLogs(asyncio.get_running_loop().time)

    def say_followed(self, run_id: RunId) -> None:
        """Tell other processes that this one follows a log, after the subscription of `follow`."""
        self._send(hint_subject(self._subjects, "follow"), run_id.encode())

    def follow(
        self, run_id: RunId, on_growth: Callable[[Sequence[RunLogEntry]], None]
    ) -> Callable[[], None]:
        """Call `on_growth` when another process says that the log has grown; return what ends that."""
        return self._subscribe_local(
            self._of_log(run_id), lambda data: on_growth(_parse_entries(data, run_id))
        )

    def takes_entries(self, run_id: RunId) -> bool:
        """Return True if a process follows the log: a hint of growth has the entries with it."""
        return self._client is not None and self._followed_logs.includes(run_id)

    def announce_growth(self, run_id: RunId, entries: Sequence[RunLogEntry] = ()) -> None:
        """Tell the processes that follow the log, if one has said so lately, which entries it has got."""
        if self._followed_logs.includes(run_id):
            self._send(self._of_log(run_id), _data_of(entries))

    def _of_log(self, run_id: RunId) -> str:
        return hint_subject(self._subjects, "log", run_id)

    @override
    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        def note(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
            self._followed_logs.note(RunId(data.decode(errors="replace")))

        await client.listen(hint_subject(self._subjects, "follow"), note)
        await super().attach(client, inbox, tasks)


def _data_of(entries: Sequence[RunLogEntry]) -> bytes:
    """Return entries as they travel; hosts of earlier releases look at no data, and send none."""
    if not entries:
        return b""
    rows = [(entry.kind, entry.position, entry.payload, entry.ts.isoformat()) for entry in entries]
    return to_json({"from": entries[0].seq, "entries": rows})


def _parse_entries(data: bytes, run_id: RunId) -> Sequence[RunLogEntry]:
    """Return the entries of a hint; none if it has no entries, or is of another version."""
    if not data:
        return ()
    entries: list[RunLogEntry] = []
    try:
        facts = from_json(data)
        rows = enumerate(facts["entries"], int(facts["from"]))
        for seq, (kind, position, payload, ts_text) in rows:
            ts = datetime.fromisoformat(ts_text)
            if ts.utcoffset() is None:  # an instant without its offset
                return ()
            entries.append(RunLogEntry(run_id, seq, str(kind), str(position), dict(payload), ts))
    except (ValueError, TypeError, KeyError):
        return ()
    return entries
