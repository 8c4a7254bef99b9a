"""What the runs of the model share: mailboxes, letters, answers, and what a fault leaves of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tests.harness.simloop import EPOCH
from tests.model.memories import Shelf

if TYPE_CHECKING:
    from tests.model.history import Line
    from tests.model.run import Run
    from tests.model.sessions import Session

OUTSIDER: Final = "ext:test"
NEVER: Final = -1.0


@dataclass(frozen=True, slots=True)
class Letter:
    """A message in an inbox, or of a run.

    Attributes:
        asker: The run that asks, if this is an ask.
        alone: A run that had it with others failed: it starts one by itself.
    """

    id: str
    sender: str
    payload: Any
    asker: str | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What ends an ask or a join.

    Attributes:
        status: ``replied``, ``completed``, ``failed`` or ``cancelled``.
        by: The run that answers.
    """

    status: str
    by: str
    result: Any = None
    error: dict[str, Any] | None = None


@dataclass(eq=False, slots=True)
class Box:
    """One agent: its inbox, its state, and the run that holds it.

    Attributes:
        is_due: The agent's next run is about to start.
        last: When a letter came last, and what brought it.
        started_at: When the last run began that waiting letters started.
    """

    agent: str
    waiting: list[Letter] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    holder: Run | None = None
    is_due: bool = False
    last: tuple[float, object] = (NEVER, None)
    started_at: float = NEVER


@dataclass(frozen=True, slots=True)
class Left:
    """What a run has when the model begins to tell of it.

    Attributes:
        letters: Messages that are the run's, by arrival.
        status: Empty, or how it has ended.
        cancel: Why it was asked to stop.
    """

    run_id: str
    agent: str
    log: list[Line]
    letters: tuple[Letter, ...] = ()
    parent: str | None = None
    root: str | None = None
    status: str = ""
    cancel: str | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything durable at one moment, and what was executed before.

    Attributes:
        arrived: Ids of letters that are in.
        read: What runs of the first agent have read that came after the submitted one.
        answers: Run, key, and the answer; None when it was taken.
        follows: Topic and follower.
        sessions: By ``AGENT SESSION``.
        shelf: The memories of the case's tenant.
    """

    at: float
    runs: list[Left]
    executions: dict[str, int] = field(default_factory=dict)
    arrived: frozenset[str] = frozenset()
    waiting: dict[str, list[Letter]] = field(default_factory=dict)
    read: list[Any] = field(default_factory=list)
    answers: list[tuple[str, str, Answer | None]] = field(default_factory=list)
    follows: list[tuple[str, str]] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    shelf: Shelf = field(default_factory=Shelf)


def iso(seconds: float) -> str:
    """Return the instant as text."""
    return (EPOCH + timedelta(seconds=seconds)).isoformat()
