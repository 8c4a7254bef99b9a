"""Values of `ActorClient`: what it returns, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue

EventKind: TypeAlias = Literal["entry", "delta", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The waiting times of an `ActorClient`, in seconds.

    Attributes:
        attempt_s: Seconds for the answer to one attempt.
        slice_s: Seconds to wait for a run's end in one request; a longer wait repeats the request.
        grace_s: Seconds to wait for an answer after the host's own time limit.
        silence_s: Seconds to wait for the next message of a stream of events.
        unserved_s: Seconds for which a request is repeated while no host serves it.
    """

    attempt_s: float = 5.0
    slice_s: float = 5.0
    grace_s: float = 2.0
    silence_s: float = 12.0
    unserved_s: float = 5.0


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run that was submitted.

    Attributes:
        run_id: 32 hexadecimal digits; all that other calls need.
        agent: The run's agent, as ``type/key``.
    """

    run_id: str
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run that ended.

    Attributes:
        run_id: The run.
        status: ``COMPLETED``, ``FAILED`` or ``CANCELLED``.
        output: What the agent returned; None unless it completed.
        error: Why it failed, as the host says; None unless it did.
    """

    run_id: str
    status: str
    output: JsonValue = None
    error: JsonValue = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The progress of a run.

    Attributes:
        run_id: The run.
        status: ``PENDING``, ``RUNNING``, ``SUSPENDED``, or how it ended.
        last_seq: The last seq of its log; -1 when it is empty.
        last_milestone: Kind of the last entry about the run itself or one of its effects.
        parked: Why it waits for a person, if it does.
        updated_at: When the last entry was written, ISO 8601 UTC.
    """

    run_id: str
    status: str
    last_seq: int = -1
    last_milestone: str | None = None
    parked: str | None = None
    updated_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a run.

    Attributes:
        kind: An ``entry`` of its log, a ``delta`` (a piece of a model's answer, or what the agent shows
            by ``ctx.emit_delta``), or the ``end``, which comes last and once.
        run_id: The run.
        seq: Seq of the entry; for a delta that of the last entry before it; for the end that of the last entry.
        attempt: The attempt of the run, from 1. When it grows, deltas of smaller ones are void.
        name: The entry's kind, the delta's kind, or the run's final status.
        position: The position in the run; deltas of one model call share it.
        data: The entry's payload, ``{"n", "text"}`` of a delta (of a ``custom.delta`` that is no text
            also ``data``), or ``{"result", "error"}`` of the end.
        at: The instant, ISO 8601 UTC.
        is_truncated: The data is larger than a message may be, and None here.
        is_restart: A delta after which what came before at this position is void: the model is
            called anew.
    """

    kind: EventKind
    run_id: str
    seq: int
    attempt: int = 1
    name: str = ""
    position: str = ""
    data: JsonValue = None
    at: str = ""
    is_truncated: bool = False
    is_restart: bool = False

    @property
    def text(self) -> str:
        """The piece of a delta, else nothing."""
        if self.kind != "delta" or not isinstance(self.data, dict):
            return ""
        return str(self.data.get("text", ""))
