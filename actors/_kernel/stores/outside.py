"""Front: what programs that are no hosts may ask of the runtime, whatever carries the question.

The gateway of a broker calls it for each request; every call names the tenant and who asks, as the
broker's permissions vouch for them, and nothing of another tenant is found, nor of another publisher
by one that sees its own runs only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from actors._kernel.agent.agent import NewSession
    from actors._kernel.agent.message import SenderKind
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.communication import FollowMode, RunStatusSummary
    from actors._kernel.runtime.ids import AgentId, RunId, TopicId
    from actors._kernel.runtime.sources import RunResult
    from actors._kernel.stores.runs import OnConflict

Sight: TypeAlias = Literal["own", "tenant"]


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity of an external client, taken from the subject of its request.

    Attributes:
        tenant: Nothing of another one is found.
        publisher: The outside service.
        kind: The kind of its messages' sender, so that ids of one kind are not those of another.
        sees: ``own``: the runs that it started, and theirs. ``tenant``: all of its tenant, and it may
            give its runs any priority.
    """

    tenant: str
    publisher: str
    sees: Sight = "own"
    kind: SenderKind = "ext"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A run that an external client asks for.

    Attributes:
        agent_id: The agent of the run; it belongs to the caller's tenant.
        payload: JSON data for the agent.
        message_id: The same one again is the same run.
        on_conflict: See `Runtime.submit`.
        priority: Lower first.
        metadata: Small text values for the message: trace context, attributes of a CloudEvent.
        session: Set if the agent is a session.
    """

    agent_id: AgentId
    payload: JsonValue
    message_id: str
    on_conflict: OnConflict = "queue"
    priority: int = 5
    metadata: Mapping[str, str]
    session: NewSession | None = None


EventKind: TypeAlias = Literal["entry", "delta", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """An event of a run, for a client that watches it.

    Attributes:
        kind: An entry of the log, a piece of what the run says live, or the end mark, which comes last and
            once.
        run_id: The run.
        seq: Of the entry; of a delta the last entry before it; of the end the last entry. Who was
            broken off goes on with ``from_seq = seq + 1``.
        attempt: The attempt of the run, from 1. When it grows, deltas of smaller ones are void.
        name: The entry's kind, the delta's kind, or the run's final status.
        position: The position in the run.
        data: The entry's payload, ``{"n", "text"}`` of a delta (and ``data`` of a custom one that is
            no text), or ``{"result", "error"}`` of the end.
        at: The instant, ISO 8601 UTC.
    """

    kind: EventKind
    run_id: RunId
    seq: int
    attempt: int
    name: str
    position: str
    data: JsonValue
    at: str


class Front(Protocol):
    """The requests of external clients.

    Every method raises `UnknownRunError` for a run that the caller does not see.
    """

    async def submit(self, caller: Caller, order: Order) -> RunId:
        """Queue a run, durably on return. Sender of the message is ``ext:<publisher>``.

        Raises:
            RunConflictError: The agent is busy, and `on_conflict` is ``reject``, or ``join`` or
                ``interrupt`` and the caller does not see the run.
            ContractError: The agent is of another tenant, or the order is malformed.
        """

    async def result(self, caller: Caller, run_id: RunId) -> RunResult:
        """Wait for the run's end and return how it ended. Cancelling the call does not touch the run."""

    async def status(self, caller: Caller, run_id: RunId) -> RunStatusSummary:
        """Return how far a run is."""

    async def cancel(self, caller: Caller, run_id: RunId, *, reason: str) -> bool:
        """Ask a run and its subtree to stop; False when it had ended."""

    async def signal(
        self, caller: Caller, run_id: RunId, name: str, payload: JsonValue, *, message_id: str
    ) -> bool:
        """Buffer a signal for a run; False for a known id or an ended run."""

    async def follow(
        self, caller: Caller, follower: AgentId, topic: TopicId, *, mode: FollowMode
    ) -> None:
        """Let an agent follow a topic of the caller's tenant."""

    async def unfollow(self, caller: Caller, follower: AgentId, topic: TopicId) -> bool:
        """End that; False when it did not follow."""

    def events(
        self, caller: Caller, run_id: RunId, *, from_seq: int = 0
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield what happens in a run, from an entry on; ends after the end mark."""

    async def describe(self, caller: Caller) -> JsonValue:
        """Return what is served here of the caller's tenant: type, key or none, docs, JSON Schemas, topics."""
