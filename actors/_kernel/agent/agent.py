"""The contract of an agent: an id and one coroutine, and what goes with each of its runs.

A run can be cancelled cooperatively. It has a position in its tree, and a share of the tree's budgets. An
agent of several modes gives each run to the agent of the run's mode. A submit and a commit say what changes
in the session that their agent is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    runtime_checkable,
)

from pydantic import BaseModel, ConfigDict, Field, field_validator

from actors._kernel.agent.message import Message
from actors._kernel.basics import MAX_WAIT_S
from actors._kernel.runtime.ids import AgentId, RunId
from actors.errors import CancellationError

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import AgentId


class CancellationToken:
    """Tripped once, seen by everyone who holds it or a child of it."""

    __slots__ = ("_callbacks", "_reason")

    def __init__(self) -> None:
        self._reason: str | None = None
        self._callbacks: list[CancellationToken] = []

    @property
    def is_cancelled(self) -> bool:
        """True if `cancel` was called on this token or on one above it."""
        return self._reason is not None

    @property
    def reason(self) -> str:
        """The reason of the cancellation, or an empty text."""
        return self._reason or ""

    def cancel(self, reason: str = "") -> None:
        """Trip the token and its children; the first reason stays."""
        if self._reason is None:
            self._reason = reason
            for child in self._callbacks:
                child.cancel(reason)

    def check(self) -> None:
        """Check that the token is not cancelled.

        Raises:
            CancellationError: Somebody did.
        """
        if self._reason is not None:
            raise CancellationError(self._reason)

    def child(self) -> CancellationToken:
        """Return a token that is tripped with this one but can also be tripped alone."""
        token = CancellationToken()
        self._callbacks.append(token)
        if self._reason is not None:
            token.cancel(self._reason)
        return token


class HistoryRetention(StrEnum):
    """The fate of open children, and of a run's chat messages, when the run ends.

    RUN: children are cancelled. PERMANENT: they become the root's. NONE: they are cancelled, and the
    next sweep takes the run's log.
    """

    RUN = "run"
    PERMANENT = "permanent"
    NONE = "none"


class SpawnBudget(BaseModel):
    """Limits on the number of runs in a tree. Counted at the root, tree-wide.

    Attributes:
        max_runs: Runs spawned while the tree exists; the root itself does not count.
        max_concurrent: Spawned runs that have not ended.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    max_runs: int = Field(default=50, ge=1)
    max_concurrent: int | None = Field(default=None, ge=1)


class ExecutionBudget(BaseModel):
    """Limits on what a tree may spend. Counted at the root, tree-wide. None means no limit.

    Attributes:
        max_tokens: Limit of tokens of model calls, input and output. At the limit, calls under way are ended.
        max_cost_usd: As their usage reports it.
        max_turns: Model calls; exact.
        deadline_s: Seconds from the root's creation, for every run of the tree; ten years at most.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    max_turns: int | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)

    @field_validator("deadline_s", mode="after")
    @classmethod
    def _bounded(cls, value: float | None) -> float | None:
        return None if value is None else min(value, MAX_WAIT_S)


class Supervision(BaseModel):
    """The position of a run in its tree, and the budgets of that tree.

    `task` is the card of a task board that the run was spawned for, if it was.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    root_id: str
    session_id: str | None = None
    parent_id: str | None = None
    depth: int = Field(default=0, ge=0)
    spawn_budget: SpawnBudget = SpawnBudget()
    execution_budget: ExecutionBudget = ExecutionBudget()
    retention: HistoryRetention = HistoryRetention.RUN
    priority: int = 5
    task: str | None = Field(default=None, exclude_if=lambda task: task is None)

    def as_root(self, run_id: str) -> Self:
        """Return the terms as those of a root."""
        root_fields = {
            "run_id": run_id,
            "root_id": run_id,
            "parent_id": None,
            "depth": 0,
            "task": None,
        }
        return self.model_copy(update=root_fields)


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


MODE_KEY: Final = "mode"
"""The key of a message's metadata that names the mode of the run that it starts."""
PARENT_NODE_KEY: Final = "parent_node"
"""The key of a message's metadata that names the node of the session that its run goes on from."""
DEFAULT_MODE: Final = "normal"


@runtime_checkable
class ModalAgent(Protocol):
    """An agent that is a session: `of_mode` chooses the agent whose code and attributes a run has.

    Its conversation has the name of its key. Starts and ends of its runs are facts of the session.
    """

    @property
    def id(self) -> AgentId:
        """The session's address; its key is the session's id."""

    def of_mode(self, mode: str) -> Agent:
        """Return the agent of a mode.

        Raises:
            ContractError: There is no such mode.
        """


ROOT: Final = "root"
"""Id in place of a node's id if there is no node. A run after it begins the conversation anew."""
FactKind: TypeAlias = Literal["queued", "started", "cancelling", "ended"]


@dataclass(frozen=True, slots=True)
class ExpectedSession:
    """A condition of a submit: its session exists and is not being deleted.

    Attributes:
        owner: The principal that owns the session, or None for any owner and for none.
    """

    owner: str | None = None


@dataclass(frozen=True, slots=True)
class NewSession:
    """The part of a submit that is about its session. The first one creates the session.

    Attributes:
        project: A label that lists show, such as the path of a folder.
        expected: The submit is refused unless this holds, also if its id is known. None if it creates a missing
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
        head: Id of the node that the run goes on from, or `ROOT`, or None for the session's head.
    """

    facts: tuple[FactKind, ...] = ()
    head: str | None = None


ASKED_TO_STOP: Final = SessionChange(("cancelling",))
"""Change of a session by a cancel request, which comes with no commit of the run."""
