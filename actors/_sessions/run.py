"""A run of a session, as an object for the caller that started it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from actors._kernel.agent.transcript import Turn
from actors._kernel.basics import check_s
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.conversations import SessionFact
from actors._runtime.loop.tasks import Ahead
from actors._runtime.runtime import Runtime
from actors._sessions.artifacts import artifacts_of
from actors._sessions.errors import ConsumedError, UnknownChildError
from actors._sessions.events import EVENTS, EventCursor, SessionEvent
from actors._sessions.feed import SessionFeed
from actors._sessions.translation import RunTranslator

RunPhase: TypeAlias = Literal["queued", "running", "completed", "failed", "cancelled"]

ENDS: Final[dict[str, RunPhase]] = {
    "run_completed": "completed",
    "run_failed": "failed",
    "run_cancelled": "cancelled",
}
"""The types of events that end a run, with the run's state."""

_ENDED: Final[dict[RunStatus, RunPhase]] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class CancelResult:
    """The outcome of a cancel.

    Attributes:
        status: The run's state now: ``queued`` or ``running`` if it did not end within the time limit.
        has_ended: True if the run has ended, by this cancel or before it.
        waited_s: Seconds that the call waited.
    """

    status: RunPhase
    has_ended: bool
    waited_s: float


@dataclass(frozen=True, slots=True)
class ChildInspection:
    """A run below another one.

    Attributes:
        run_id: The child.
        agent_id: The child's agent.
        status: The child's status now.
        nodes: The turns that the child has written, in all conversations of its agent, the oldest first.
        events: The events of the child so far.
        artifacts: Names of the artifacts that the child has put, see `SessionArtifacts.list`.
    """

    run_id: RunId
    agent_id: AgentId
    status: RunStatus
    nodes: list[Turn]
    events: list[SessionEvent]
    artifacts: list[str]


class SessionRun:
    """A run of a session. The run does not depend on this object.

    Attributes:
        run_id: The run.
        session_id: The run's session.
        status: The last known state, from the run's start or from events that were read here.
    """

    run_id: RunId

    def __init__(
        self,
        runtime: Runtime,
        agent: AgentId,
        run_id: RunId,
        *,
        queued: SessionFact | None,
        live: bool = True,
    ) -> None:
        self._runtime, self._agent, self.run_id = runtime, agent, run_id
        self.session_id: str = agent.key
        self.status: RunPhase = "queued" if queued is not None and queued.ahead else "running"
        self._begin = EventCursor(0 if queued is None else queued.number - 1)
        self._live = live
        self._is_read = False
        self._own_events: asyncio.Queue[SessionEvent] = asyncio.Queue()

    def events(self) -> AsyncGenerator[SessionEvent, None]:
        """Yield the run's events from its start to its last one, for one reader.

        A slow reader does not slow the run, and a closed reader does not stop it. A slow reader misses the
        oldest pieces of answers.

        Raises:
            ConsumedError: The method was called before. `AgentRuntime.tail_session` allows any number of
                readers.
        """
        if self._is_read:
            raise ConsumedError(self.run_id)
        self._is_read = True
        return self._events()

    def tail(self) -> AsyncGenerator[SessionEvent, None]:
        """Yield the run's events from its start on, for any number of readers.

        The events are those of `events` without `cancel_timeout`, which only the caller of `cancel` gets.
        """
        feed = SessionFeed(
            self._runtime, self._agent, self._begin, live=self._live, only=self.run_id
        )
        return feed.follow()

    async def _events(self) -> AsyncGenerator[SessionEvent, None]:
        async with (
            aclosing(Ahead(self.tail())) as events,
            aclosing(Ahead(_all_of(self._own_events), events.news)) as own_events,
        ):
            while True:
                if own_events.has_next():
                    yield await own_events.take()
                    continue
                if not events.has_next():
                    # No await since `has_next`: what arrives after `clear` sets the event again.
                    events.news.clear()
                    await events.news.wait()
                    continue
                try:
                    event = await events.take()
                except StopAsyncIteration:
                    return
                if event.type == "loop_started":
                    self.status = "running"
                elif event.type in ENDS:
                    self.status = ENDS[event.type]
                yield event

    def _tell(self, type_: str, payload: dict[str, Any]) -> None:
        """Add an event that only this object's reader gets."""
        event = {
            "type": type_,
            "session_id": self.session_id,
            "run_id": self.run_id,
            "agent_id": str(self._agent),
            "at": self._runtime.clock.now(),
            "payload": payload,
        }
        self._own_events.put_nowait(EVENTS.validate_python(event))

    async def result(self) -> JsonValue:
        """Wait until the run has ended; return its output.

        Raises:
            RunFailedError: The run failed permanently or was cancelled.
        """
        return await self._runtime.result(self.run_id)

    async def wait(self) -> RunPhase:
        """Wait until the run has ended; return its terminal state."""
        row = await self._runtime.wait(self.run_id)
        self.status = state_of(row)
        return self.status

    async def refresh(self) -> RunPhase:
        """Read and return the run's current state."""
        row = await self._runtime.store.reads.run(self.run_id)
        if row is not None:
            self.status = state_of(row)
        return self.status

    async def cancel(self, *, reason: str = "", timeout_s: float = 30.0) -> CancelResult:
        """Request the cancellation of the run and all runs below it; wait until the run has ended.

        A queued run leaves the queue without a model call. A cancellation of this call does not withdraw the
        request.

        Args:
            reason: The reason, which is written to the run's log.
            timeout_s: Seconds after which the call returns even if the run has not ended.
        """
        limit_s, clock = check_s("timeout_s", timeout_s), asyncio.get_running_loop().time
        started_s = clock()
        await self._runtime.cancel(self.run_id, reason=reason)
        try:
            async with asyncio.timeout(limit_s):
                await self.wait()
        except TimeoutError:
            self._tell("cancel_timeout", {"waited_s": timeout_s})
            return CancelResult(await self.refresh(), has_ended=False, waited_s=clock() - started_s)
        return CancelResult(self.status, has_ended=True, waited_s=clock() - started_s)

    async def children(self) -> list[RunId]:
        """Return the runs that this run has spawned, in order."""
        return [child.run_id for child in await self._runtime.children(self.run_id)]

    async def inspect_child(self, child: RunId | str) -> ChildInspection:
        """Return the turns, events and artifacts of a run below this run so far.

        Raises:
            UnknownChildError: The run is not below this run.
        """
        row = await self._child(child)
        store = self._runtime.store
        nodes = [
            turn
            for info in await store.data.transcripts.sessions(row.agent_id)
            for turn in await store.data.transcripts.page(row.agent_id, info.name, branches=True)
            if turn.run_id == row.run_id
        ]
        translator = self._translator_of(row)
        entries = self._runtime.entries(row.run_id)
        events = [event async for entry in entries for event in await translator.of(entry)]
        artifacts = await artifacts_of(store, self._agent).list(run_id=row.run_id)
        names = [artifact.name for artifact in artifacts]
        return ChildInspection(row.run_id, row.agent_id, row.status, nodes, events, names)

    async def child_events(self, child: RunId | str) -> AsyncIterator[SessionEvent]:
        """Yield the events of a run below this run, from its start to its last one.

        A reader that begins in the middle of an answer first gets a `text_snapshot` of it, as with
        `AgentRuntime.tail_session`.

        Raises:
            UnknownChildError: The run is not below this run.
        """
        row = await self._child(child)
        translator = self._translator_of(row)
        async for entry in self._runtime.tail(row.run_id, live=True, whole=True):
            for event in await translator.of(entry):
                yield event

    def _translator_of(self, child: RunRow) -> RunTranslator:
        hidden_names = self._runtime.hidden_names
        return RunTranslator(self.session_id, child.run_id, child.agent_id, hidden_names)

    async def _child(self, child: RunId | str) -> RunRow:
        row = await self._runtime.store.reads.run(RunId(str(child)))
        ancestor = row
        while ancestor is not None and ancestor.parent is not None:
            if ancestor.parent == self.run_id and row is not None:
                return row
            ancestor = await self._runtime.store.reads.run(ancestor.parent)
        raise UnknownChildError(self.run_id, str(child)[:128])


async def _all_of(queue: asyncio.Queue[SessionEvent]) -> AsyncGenerator[SessionEvent, None]:
    while True:
        yield await queue.get()


def state_of(row: RunRow) -> RunPhase:
    """Return the state of a run in the words of sessions."""
    if row.status in _ENDED:
        return _ENDED[row.status]
    return "queued" if row.last_seq < 0 else "running"
