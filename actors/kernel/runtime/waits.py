"""Waits of a run for an answer, and the answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, RunId

AnswerStatus: TypeAlias = Literal[
    "replied", "completed", "failed", "cancelled", "approved", "denied"
]
PERSONAL: Final = ("approved", "denied")
"""What a person answers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that ends a wait of a run. The first one with its key counts; later ones change nothing.

    Kept until it is taken, also when it comes before anybody waits, or after the wait is over.

    Attributes:
        run_id: Who waits for it.
        key: What it waits for: the id of an ask's message, a run (join), an approval, a call of a tool.
        status: ``replied`` by the target's code or a client; ``completed``, ``failed`` or ``cancelled``: how
            the run ended that was joined or held the question; ``approved`` or ``denied`` by a person.
        result: What was replied, or returned.
        error: Type and message, for ``failed``; ``{"message": reason}`` for ``cancelled``.
        by: The run that answered.
        last_seq: Where its log ends then; -1 when unknown.
    """

    run_id: RunId
    key: str
    status: AnswerStatus
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None
    by: RunId | None = None
    last_seq: int = -1


WaitKind: TypeAlias = Literal["ask", "join", "approval", "tool"]
FROM_OUTSIDE: Final = ("approval", "tool")
"""What a person answers, or the program that a run talks to."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An open ask, join, approval or call of a client's tool, as others see it.

    Attributes:
        position: Where in the run it stands.
        kind: What is waited for.
        key: Of the answer that ends it.
        agent: The agent waited for; None for a person or a client.
        target_run: The run waited for: its end answers, even if it never sees a question.
        must: Whether the run can do nothing else until one of its waits ends: the waits of such a run
            make cycles. One of them says it for all, so that a change of it is a change of one row.
        request: What a person or a client is asked.
        expires_at: When the wait ends by itself.
    """

    position: str
    kind: WaitKind
    key: str
    agent: AgentId | None = None
    target_run: RunId | None = None
    must: bool = False
    request: JsonValue = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A wait, whose it is, and since when."""

    run_id: RunId
    agent_id: AgentId
    wait: Wait
    since: datetime


@dataclass(frozen=True, slots=True)
class WaitCycle:
    """Waits that can never end: each of `agents` waits for the next, the last one for the first.

    Attributes:
        run_id: Whose wait has to fail.
        agent_id: Whose run that is, `agents[0]`.
        position: Of that wait.
        agents: Around the cycle.
    """

    run_id: RunId
    agent_id: AgentId
    position: str
    agents: tuple[AgentId, ...]
