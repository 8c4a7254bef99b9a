"""Hints over core NATS that a log has grown: published while another process has said that it follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from pydantic_core import from_json, to_json
from typing_extensions import override

from actors.kernel.runtime.hints import FollowedLogs
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.log_entry import RunLogEntry
from broker.gateway.core_subjects import CoreSubjects
from broker.nats.client import NatsConnection
from broker.nats.reconnecting import Tasks
from broker.wire.subjects import Subjects, hint_subject


class NatsLogHints(CoreSubjects):
    """See `LogHints`."""

    def __init__(self, subjects: Subjects) -> None:
        super().__init__(subjects)
        self._followed = FollowedLogs(asyncio.get_running_loop().time)

    def say_followed(self, run_id: RunId) -> None:
        """See `LogHints.say_followed`. It is sent after the subscription of `follow`."""
        self._send(hint_subject(self._subjects, "follow"), run_id.encode())

    def follow(
        self, run_id: RunId, on_growth: Callable[[Sequence[RunLogEntry]], None]
    ) -> Callable[[], None]:
        """See `LogHints.follow`."""
        return self._subscribe_local(
            self._of_log(run_id), lambda data: on_growth(_entries(data, run_id))
        )

    def takes_entries(self, run_id: RunId) -> bool:
        """See `LogHints.takes_entries`."""
        return self._client is not None and self._followed.includes(run_id)

    def announce_growth(self, run_id: RunId, entries: Sequence[RunLogEntry] = ()) -> None:
        """See `LogHints.announce_growth`."""
        if self._followed.includes(run_id):
            self._send(self._of_log(run_id), _data_of(entries))

    def _of_log(self, run_id: RunId) -> str:
        return hint_subject(self._subjects, "log", run_id)

    @override
    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        def note(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
            self._followed.note(RunId(data.decode(errors="replace")))

        await client.listen(hint_subject(self._subjects, "follow"), note)
        await super().attach(client, inbox, tasks)


def _data_of(entries: Sequence[RunLogEntry]) -> bytes:
    """Return entries as they travel; hosts of earlier releases look at no data, and send none."""
    if not entries:
        return b""
    rows = [(one.kind, one.position, one.payload, one.ts.isoformat()) for one in entries]
    return to_json({"from": entries[0].seq, "entries": rows})


def _entries(data: bytes, run_id: RunId) -> Sequence[RunLogEntry]:
    """Return the entries of a hint; none if it has no entries, or is of another version."""
    if not data:
        return ()
    try:
        said = from_json(data)
        return [
            RunLogEntry(run_id, seq, str(kind), str(position), dict(payload), _instant(at))
            for seq, (kind, position, payload, at) in enumerate(said["entries"], int(said["from"]))
        ]
    except (ValueError, TypeError, KeyError):
        return ()


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.utcoffset() is None:
        raise ValueError("an instant without its offset")
    return found
