"""Sessions as runs know them: what a submit and a commit say of the session that their agent is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

ROOT: Final = "root"
"""Id in place of a node's id if there is no node. A run after it begins the conversation anew."""
FactKind: TypeAlias = Literal["queued", "started", "cancelling", "ended"]


@dataclass(frozen=True, slots=True)
class ExpectedSession:
    """A condition of a submit: its session exists and is not being deleted.

    Attributes:
        owner: The principal that owns the session. None: any owner, or none.
    """

    owner: str | None = None


@dataclass(frozen=True, slots=True)
class NewSession:
    """The part of a submit that is about its session. The first one creates the session.

    Attributes:
        project: A label that lists show, such as the path of a folder.
        expected: The submit is refused unless this holds, also if its id is known. None: it creates a missing
            session.
        is_followed: The caller reads facts and entries of the run from its submit on. They are kept for it from
            then on if this process executes the run.
    """

    project: str = ""
    expected: ExpectedSession | None = None
    is_followed: bool = False


@dataclass(frozen=True, slots=True)
class SessionChange:
    """The part of a run's commit that is about its session.

    Attributes:
        facts: What the commit means for the run, in order. One that ends without success moves the session's
            head to the last node of the run that a user sees.
        head: Id of the node that the run goes on from, or `ROOT`; None: from where the session's head is.
    """

    facts: tuple[FactKind, ...] = ()
    head: str | None = None


ASKED_TO_STOP: Final = SessionChange(("cancelling",))
"""Change of a session by a cancel request, which comes with no commit of the run."""
