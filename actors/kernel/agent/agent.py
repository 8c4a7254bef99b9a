"""The contract of an agent: an id and one coroutine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, runtime_checkable

from actors.kernel.agent.cancellation import CancellationToken
from actors.kernel.agent.message import Message
from actors.kernel.agent.supervision import Supervision
from actors.kernel.runtime.ids import AgentId, RunId

MAX_MESSAGES: Final = 100
"""Number of waiting messages that one run gets, unless its agent's `batch` is smaller."""


@runtime_checkable
class AgentRunContext(Protocol):
    """The least that every ctx offers, whatever runs the agent."""

    @property
    def run_id(self) -> RunId:
        """The run this context belongs to."""

    @property
    def tenant_id(self) -> str:
        """The tenant of the run."""

    def check(self) -> None:
        """Check that the run may go on.

        Raises:
            CancellationError: The run was cancelled.
            DeadlineExceededError: The run's deadline has passed.
        """


@runtime_checkable
class Agent(Protocol):
    """Anything with an id and `run`. No base class, no decorator.

    Optional attributes: `model` (LLMClient), `tools` (list of Tool), `tool_invoker`, `approval_policy`
    (ApprovalPolicy: which tools wait for a person), `middleware`, `hooks`,
    `guards` (list of `Guard`), `session` (the conversation of runs that name none), `instructions` (in front of
    every window),
    `version` (text), `concurrency` ("serial" is all that there is: see promise 10 of docs/semantics.md),
    `retry` (RetryPolicy of its runs, where who starts one gives none), `batch` (how many waiting messages a
    run is given at most, 1 to 100), `retention` (HistoryRetention of runs that waiting messages start),
    `deadline_s` (seconds one attempt may execute), `context` (its `history`, a `HistoryProvider`, and
    `retention`: with RUN a run's chat messages are cleared when it completes), `input`, `output` (types of
    payload and result) and `follows` (topics), which only `callboard describe` reads.
    """

    @property
    def id(self) -> AgentId:
        """The address of this agent's messages."""

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Handle the run's messages; the returned JSON data is the run's output.

        Called again from the start after a crash or a suspension: every ctx call that is recorded
        returns its recorded value. Everything else in here must be deterministic.
        """


@dataclass(frozen=True, slots=True)
class RunMeta:
    """Facts about a run that its code may read."""

    run_id: RunId
    agent_id: AgentId
    attempt: int
    cancellation: CancellationToken
    supervision: Supervision
    deadline: datetime | None = None
    trace_id: str | None = None
    """The trace it belongs to, as 32 hexadecimal digits; no traceparent."""
