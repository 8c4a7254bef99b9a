"""Waits of a run: for an answer, and for what resumes it when it is suspended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic import JsonValue as ModelJson

from actors._kernel.json import JsonValue
from actors._kernel.json import JsonValue as Json
from actors._kernel.runtime.ids import AgentId, RunId, derive_id

AnswerStatus: TypeAlias = Literal[
    "replied", "completed", "failed", "cancelled", "approved", "denied", "resumed"
]
PERSONAL: Final = ("approved", "denied", "resumed")
"""Answers that are accepted only while the run waits for them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that ends a wait of a run. The first one with its key counts; later ones change nothing.

    Kept until it is taken, also when it comes before anybody waits, or after the wait is over.

    Attributes:
        run_id: The run that waits for the answer.
        key: What it waits for: the id of an ask's message, a run (join), an approval, a call of a tool.
        status: ``replied`` by the target's code or a client; ``completed``, ``failed`` or ``cancelled``: how
            the run ended that was joined or held the question; ``approved`` or ``denied`` by a person;
            ``resumed``: to a wait of a graph.
        result: What was replied, or returned.
        error: Type and message, for ``failed``; ``{"message": reason}`` for ``cancelled``.
        by: The run that answered.
        last_seq: The last seq of its log at that time; -1 when unknown.
    """

    run_id: RunId
    key: str
    status: AnswerStatus
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None
    by: RunId | None = None
    last_seq: int = -1


WaitKind: TypeAlias = Literal["ask", "join", "approval", "tool", "user", "event", "job"]
GRAPH_WAITS: Final = ("user", "event", "job")
"""Waits of graphs: for a person, an event, a job elsewhere."""
FROM_OUTSIDE: Final = ("approval", "tool", *GRAPH_WAITS)
"""Kinds of waits that no agent answers, but a person, the program that a run talks to, or an event."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An open ask, join, approval, call of a client's tool or wait of a graph, as others see it.

    Attributes:
        position: The position in the run.
        kind: What is waited for.
        key: Key of the answer that ends the wait.
        agent: The agent waited for; None for a person or a client.
        target_run: The run waited for: its end answers, even if it never sees a question.
        must: True if the run can do nothing else until one of its waits ends: the waits of such a run
            make cycles. One of them says it for all, so that a change of it is a change of one row.
        request: What a person or a client is asked.
        expires_at: The instant at which the wait ends without an answer.
    """

    position: str
    kind: WaitKind
    key: str
    agent: AgentId | None = None
    target_run: RunId | None = None
    must: bool = False
    request: JsonValue = None
    expires_at: datetime | None = None


EVENT: Final = "event"
"""Key of the event's id in the request of a wait for an event."""


def event_id(tenant: str, name: str) -> str:
    """Return the id of an event of a tenant; `name` says of which scope it is, too."""
    return derive_id("event", tenant, name)


def event_of(request: JsonValue) -> JsonValue:
    """Return the id of the event that the request of a wait is for, or None if it is for none."""
    return request.get(EVENT) if isinstance(request, dict) else None


class WaitPlace(NamedTuple):
    """The position of a wait among all, oldest first; those of one instant by run, position and key."""

    since: datetime
    run_id: RunId
    position: str
    key: str


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A wait, whose it is, and since when."""

    run_id: RunId
    agent_id: AgentId
    wait: Wait
    since: datetime

    @property
    def place(self) -> WaitPlace:
        """The position of the wait among all."""
        return WaitPlace(self.since, self.run_id, self.wait.position, self.wait.key)


@dataclass(frozen=True, slots=True)
class WaitCycle:
    """Waits that can never end: each of `agents` waits for the next, the last one for the first.

    Attributes:
        run_id: The run whose wait has to fail.
        agent_id: The agent of that run, `agents[0]`.
        position: The position of that wait.
        agents: Around the cycle.
    """

    run_id: RunId
    agent_id: AgentId
    position: str
    agents: tuple[AgentId, ...]


class Wakeup(BaseModel):
    """A cause that resumes a run.

    Attributes:
        kind: What happened.
        at: The instant, for a timer.
        signal: The signal's name.
        payload: The signal's data.
        source_run: The run that caused it.
        child_run: The child that ended.
        result_ref: Reference of the child's stored result, if it is large.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["message", "timer", "signal", "child_done"]
    at: AwareDatetime | None = None
    signal: str | None = None
    payload: dict[str, ModelJson] = Field(default_factory=dict)
    source_run: str | None = None
    child_run: str | None = None
    result_ref: str | None = None


@dataclass(frozen=True, slots=True)
class WakeSet:
    """Everything a suspended run waits for; any one of it wakes the run.

    Attributes:
        at: The earliest timer, aware UTC.
        signals: Names of signals.
        message: True if plain messages wake it (`ctx.receive`).
        runs: Keys of answers (`Answer.key`) that wake it.
    """

    at: datetime | None = None
    signals: tuple[str, ...] = ()
    message: bool = False
    runs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """Return the stored form; empty parts are left out."""
        data: dict[str, Json] = {}
        if self.at is not None:
            data["at"] = self.at.isoformat()
        if self.signals:
            data["signals"] = list(self.signals)
        if self.message:
            data["message"] = True
        if self.runs:
            data["runs"] = list(self.runs)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> WakeSet:
        """Return the value that `to_json` stored."""
        at, signals, runs = data.get("at"), data.get("signals"), data.get("runs")
        return cls(
            at=datetime.fromisoformat(at) if isinstance(at, str) else None,
            signals=tuple(str(s) for s in signals) if isinstance(signals, list) else (),
            message=bool(data.get("message")),
            runs=tuple(str(r) for r in runs) if isinstance(runs, list) else (),
        )


class SignalBus(Protocol):
    """Named, buffered signals to runs, and timers."""

    async def signal(self, run_id: RunId, name: str, payload: dict[str, Json]) -> None:
        """Wake a run waiting for `name`, or keep the signal until it waits.

        Signals of one name arrive in order; each is consumed once.
        """

    async def timer(self, run_id: RunId, at: datetime) -> None:
        """Wake the run at `at` (at once when that has passed); dropped when the run ends."""
