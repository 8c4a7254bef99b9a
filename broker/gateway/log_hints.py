"""Hints over core NATS that a log has grown: published while another process has said that it follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from typing_extensions import override

from actors.kernel.runtime.hints import FollowedLogs
from actors.kernel.runtime.ids import RunId
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

    def follow(self, run_id: RunId, on_growth: Callable[[], None]) -> Callable[[], None]:
        """See `LogHints.follow`."""
        return self._subscribe_local(self._of_log(run_id), lambda _: on_growth())

    def announce_growth(self, run_id: RunId) -> None:
        """See `LogHints.announce_growth`."""
        if self._followed.includes(run_id):
            self._send(self._of_log(run_id), b"")

    def _of_log(self, run_id: RunId) -> str:
        return hint_subject(self._subjects, "log", run_id)

    @override
    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        def note(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
            self._followed.note(RunId(data.decode(errors="replace")))

        await client.listen(hint_subject(self._subjects, "follow"), note)
        await super().attach(client, inbox, tasks)
