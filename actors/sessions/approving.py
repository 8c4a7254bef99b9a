"""Approvals that a callback of the program decides, for the requests of a run and of the runs below it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from actors.errors import UnknownApprovalError
from actors.kernel.runtime.communication import ApprovalRequest
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.log_entry import EntryKind
from actors.runtime.loop.tasks import TaskScope, in_thread
from actors.runtime.runtime import Runtime

OnApproval: TypeAlias = Callable[[ApprovalRequest], Awaitable[bool | None] | bool | None]
"""Function that decides a request. None: it leaves the request to another client.

A plain function is called in a thread, so it may ask at a terminal.
"""

BY: Final = "callback"
_log = logging.getLogger("callboard.sessions")


class Approving:
    """Watcher of runs that decides their approvals.

    A run makes a request during its execution, so a queued run has none.

    Args:
        runtime: The runtime of the runs.
        decide: The callback, called once per request. If it raises, the request stays open.
        tasks: The scope of the watching tasks, which end with it.
    """

    def __init__(self, runtime: Runtime, decide: OnApproval, tasks: TaskScope) -> None:
        self._runtime, self._decide, self._tasks = runtime, decide, tasks
        self._watched: set[RunId] = set()

    def watch(self, run_id: RunId) -> None:
        """Decide the requests of a run and of the runs that it spawns, until it has ended."""
        if run_id not in self._watched:
            self._watched.add(run_id)
            self._tasks.start(self._watch(run_id), name=f"approvals of {run_id}")

    async def _watch(self, run_id: RunId) -> None:
        try:
            async for entry in self._runtime.tail(run_id):
                payload: dict[str, Any] = entry.payload
                if entry.kind == EntryKind.CHILD_SPAWNED:
                    self.watch(RunId(payload["child"]))
                elif entry.kind == EntryKind.ASK_SENT and payload["target"] == "person":
                    name = f"approval {payload['message_id']}"
                    self._tasks.start(self._answer(run_id, payload["message_id"]), name=name)
        finally:
            self._watched.discard(run_id)

    async def _answer(self, run_id: RunId, id_: str) -> None:
        open_ones = await self._runtime.approvals.open(run_id=run_id)
        request = next((one for one in open_ones if one.id == id_), None)
        if request is None:
            return
        approve = await self._decided(request)
        if approve is None:
            return
        try:
            await self._runtime.approvals.decide(id_, approve=approve, by=BY)
        except UnknownApprovalError as exc:
            _log.info(
                "a request was decided before the callback decided it", extra={"why": str(exc)}
            )

    async def _decided(self, request: ApprovalRequest) -> bool | None:
        answer: Any
        if inspect.iscoroutinefunction(self._decide):
            answer = self._decide(request)
        else:
            answer = await in_thread(self._decide, request)
        approve: bool | None = await answer if inspect.isawaitable(answer) else answer
        return approve
