"""One turn of one run as a value: what a commit writes, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from actors.kernel.agent.message import Message, MessageKey
    from actors.kernel.agent.supervision import HistoryRetention, Supervision
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.follow_graph import FollowMode
    from actors.kernel.runtime.ids import AgentId, RunId, ShardId, TopicId
    from actors.kernel.runtime.log_entry import NewEntry, RunLogEntry
    from actors.kernel.runtime.scheduler import Lease, ShardLease
    from actors.kernel.runtime.store import Nudge
    from actors.kernel.runtime.wakeup import WakeSet


# --- what becomes of the run after a turn: exactly one ---------------------------------------


@dataclass(frozen=True, slots=True)
class Continue:
    """It goes on executing: RUNNING."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """It waits, as rows only: SUSPENDED until something in `wake` happens."""

    wake: WakeSet


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: PENDING, not to be started before `at`; counts one attempt.

    `release` are messages that the run gives back, bound or not: they wait again, each at its place, and
    each for a run that is given nothing else (`Arrived.alone`).
    """

    at: datetime
    error: dict[str, JsonValue]
    retry_from: int
    release: tuple[MessageKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """It ended: COMPLETED, FAILED or CANCELLED.

    Its bound messages become done; with `dead_letter` set they become dead letters of that reason.
    """

    status: RunStatus
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True)
class Park:
    """It waits for an operator: SUSPENDED with a reason, until resolved or cancelled."""

    reason: str
    position: str = ""


Then: TypeAlias = Continue | Suspend | Retry | Finish | Park
CONTINUE: Final = Continue()


# --- parts of a commit ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a run begins that goes on from another one's log: behind entry `seq` of `run_id`."""

    run_id: RunId
    seq: int


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be created, PENDING. Creating it twice is a no-op.

    Attributes:
        run_id: Derived from what causes it (see `ids`).
        agent_id: Whose run it is.
        priority: Lower first.
        retry_policy: The run's one retry counter follows it. None: nobody gave one, so it is the
            `retry` of the agent that begins the run, as its first entry tells, else the default.
        parent: The spawning run.
        root: Root of the tree; the run itself when it has no parent.
        depth: 0 for a root.
        deadline_at: When it has to have ended.
        version: Code version it is pinned to.
        trace: W3C traceparent of what caused it.
        supervision: Its terms, where they are not the defaults; the budgets of a root's count for the
            whole tree, those of others are copies.
        fork: Whose log it begins with; None: an empty one.
    """

    run_id: RunId
    agent_id: AgentId
    priority: int = 5
    retry_policy: RetryPolicy | None = None
    parent: RunId | None = None
    root: RunId | None = None
    depth: int = 0
    deadline_at: datetime | None = None
    version: str | None = None
    trace: str | None = None
    supervision: Supervision | None = None
    fork: ForkPoint | None = None


@dataclass(frozen=True, slots=True)
class Spawned:
    """A child to be created with its parent's turn.

    Attributes:
        run: With parent, root and depth set; born with its parent's cancel flag.
        position: Of the spawn in the parent, to name it when the tree's budget refuses it.
        boot: The child's first message, bound to it, with sender ``spawn:<parent's agent>``; None: it
            starts with an empty inbox.
    """

    run: NewRun
    position: str
    boot: Message | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message leaving with a commit. `message.id`, `sender` and target identify it for ever.

    To a topic it is a post: every follower of the commit's moment gets it.
    """

    message: Message
    sender: str
    target: AgentId | TopicId


class SignalKey(NamedTuple):
    """One buffered signal of a run: name and its number in arrival order."""

    name: str
    n: int


# --- what runs wait for from each other -------------------------------------------------------

AnswerStatus: TypeAlias = Literal[
    "replied", "completed", "failed", "cancelled", "approved", "denied"
]

PERSONAL: Final = ("approved", "denied")
"""What a person answers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What ends a wait of a run. The first answer with its key counts; later ones change nothing.

    Kept until it is taken, also when it comes before anybody waits, or after the wait is over.

    Attributes:
        run_id: Who waits for it.
        key: What it waits for: the id of an ask's message, of a run (join), of an approval.
        status: ``replied`` by the target's code; ``completed``, ``failed`` or ``cancelled``: how the
            run ended that was joined or held the question; ``approved`` or ``denied`` by a person.
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


WaitKind: TypeAlias = Literal["ask", "join", "approval"]


@dataclass(frozen=True, slots=True)
class Wait:
    """An open ask, join or approval as others see it.

    Attributes:
        position: Where in the run it stands.
        kind: What is waited for.
        key: Of the answer that ends it.
        agent: The agent waited for; None for a person.
        target_run: The run waited for: its end answers, even if it never sees a question.
        must: Whether the run can do nothing else until the answer comes: such waits make cycles.
        request: What a person is asked.
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


@dataclass(frozen=True, slots=True)
class FollowChange:
    """The run's agent follows a topic from now on, or, with `mode` None, not any more."""

    topic: TopicId
    mode: FollowMode | None


class Deleted:
    """Marks a state key as removed."""

    __slots__ = ()


DELETED: Final = Deleted()


@dataclass(frozen=True, slots=True)
class BudgetDelta:
    """What a turn adds to the tree's account, at the root. Only for trees with an execution budget.

    Attributes:
        tokens: Used, input and output.
        cost_usd: Spent.
        turns: Model calls that begin; such a turn is refused when the budget has no place for them,
            or tokens or money are used up already.
        position: Of the call that begins, to name it when it is refused.
    """

    tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0
    position: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """One turn of one run: all of it becomes durable or nothing.

    Attributes:
        lease: Fences the write: shard owner and epoch are compared under a lock.
        expected_seq: Where the run's log must end now (-1 = empty).
        entries: Appended in order behind `expected_seq`.
        then: What becomes of the run.
        create: The run's row, when this commit starts a run from waiting mail.
        bind: Pending messages that become this run's; all must still be pending, and nothing older of
            their senders may be left behind.
        any_order: What is bound may overtake; for who handles mail himself, message by message.
        outgoing: Messages to send, in this order.
        take_signals: Buffered signals consumed; all must still be there.
        take_answers: Keys of answers consumed; all must still be there.
        state: Values of the agent's state to write; `DELETED` removes a key.
        spawned: Children to create, counted against the tree's budget.
        answers: Replies to asks that this run's agent got.
        waits: All waits that are open now, in place of those before; None: they are as they were.
            A run's waits are gone when it ends.
        follows: Applied in order, before any post of this turn.
        orphans: With `Finish`: what becomes of children that are still open. RUN and NONE: they and
            all below are asked to stop; PERMANENT: they become children of the root.
        budget: What this turn spends.
        withdraw: Questions of this run that were refused: those that nobody has begun are gone.
        unless_answered: Keys of waits that end without an answer: no answer may be there by now.
        attempt: The attempt that is executing, 1 for the first; kept with the run.
    """

    lease: Lease
    expected_seq: int
    entries: tuple[NewEntry, ...] = ()
    then: Then = CONTINUE
    create: NewRun | None = None
    bind: tuple[MessageKey, ...] = ()
    any_order: bool = False
    outgoing: tuple[Outgoing, ...] = ()
    take_signals: tuple[SignalKey, ...] = ()
    take_answers: tuple[str, ...] = ()
    state: Mapping[str, JsonValue | Deleted] = field(default_factory=dict)
    spawned: tuple[Spawned, ...] = ()
    answers: tuple[Answer, ...] = ()
    waits: tuple[Wait, ...] | None = None
    follows: tuple[FollowChange, ...] = ()
    orphans: HistoryRetention | None = None
    budget: BudgetDelta | None = None
    withdraw: tuple[MessageKey, ...] = ()
    unless_answered: tuple[str, ...] = ()
    attempt: int = 1


# --- outcomes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message that is now a pending row of an inbox: `arrival` is its place in the queue."""

    message: Message
    sender: str
    agent_id: AgentId
    arrival: int
    run_id: RunId | None = None
    """The run it is bound to, if it is."""
    alone: bool = False
    """A run that had it with others failed: it starts one by itself."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The turn is durable.

    Attributes:
        last_seq: Where the log ends now.
        cancel_requested: Reason, if somebody asked this run to stop.
        routed: Outgoing messages that became inbox rows here and now; known ids are left out.
        wake_now: After `Suspend`: something it waits for is there already; run it again.
        cycles: Waits of this run that can never end.
        nudges: What this turn changed for agents of this host's shards: answers for waiting runs
            (signal), runs to stop (cancel), posts to bring to followers (fanout), and, after an
            unknown outcome, children to start (run). Other owners are told by the store.
        spawned: Children of agents of this host's shards, each with its place in the agent's queue,
            before all that was routed.
    """

    last_seq: int
    cancel_requested: str | None = None
    routed: tuple[Arrived, ...] = ()
    wake_now: bool = False
    cycles: tuple[WaitCycle, ...] = ()
    nudges: tuple[Nudge, ...] = ()
    spawned: tuple[tuple[Spawned, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Somebody else owns the shard: drop it and everything in it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The log ends elsewhere: read it again, same attempt."""

    actual_seq: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Messages or signals to be taken are not there any more, or the run has ended."""

    what: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """Something older of the same senders waits and is not bound with these; nothing was written.

    Read the agent's mail again, oldest first. No hint has to have come for that.
    """

    keys: tuple[MessageKey, ...]


@dataclass(frozen=True, slots=True)
class OverBudget:
    """The tree's budget has no place for what the turn begins at these positions; nothing was written.

    Execute the run again from what is durable, and let these calls raise. Of several spawns the
    first ones that fit are not named.

    Attributes:
        positions: Of spawns, or of a model call.
        limit: Which limit, with its number, for example ``max_runs 50``.
    """

    positions: tuple[str, ...]
    limit: str


@dataclass(frozen=True, slots=True)
class Answered:
    """Answers with these keys came before the end of their waits; nothing was written.

    Write the turn again with the answers in place of those ends.
    """

    keys: tuple[str, ...]


CommitOutcome: TypeAlias = (
    Committed | LeaseLost | Conflict | Missing | OutOfOrder | OverBudget | Answered
)


# --- rows as the worker reads them ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored: a fold of its log, plus what caused it."""

    run_id: RunId
    agent_id: AgentId
    status: RunStatus
    priority: int = 5
    attempt: int = 0
    retry_policy: RetryPolicy | None = None
    """What whoever started it gave; see `NewRun`."""
    parent: RunId | None = None
    root: RunId | None = None
    depth: int = 0
    wake: WakeSet | None = None
    wake_at: datetime | None = None
    parked: str | None = None
    last_seq: int = -1
    cancel_requested: str | None = None
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None
    deadline_at: datetime | None = None
    version: str | None = None
    trace: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    arrival: int = 0
    """Place of its first message in the agent's queue."""
    supervision: Supervision | None = None
    """Its terms as stored; None: the defaults."""
    swept: bool = False
    """A tombstone: ended long ago, its log, result and messages are gone."""
    fork: ForkPoint | None = None
    """Whose log it began with, or will when its turn comes."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """What the worker needs to execute a run.

    Its row, its log since the last `run.continued`, and, for a run that has not started yet, the
    messages bound to it.
    """

    row: RunRow
    entries: tuple[RunLogEntry, ...]
    messages: tuple[Arrived, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferedSignal:
    """A signal that waits to be consumed; `n` grows with arrival."""

    name: str
    n: int
    payload: JsonValue
    about: int | None = None
    """Seq of the entry that an operator's decision is about; None for all other signals."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A suspended or backing-off run that is to go on at `at`."""

    run_id: RunId
    agent_id: AgentId
    at: datetime


@dataclass(frozen=True, slots=True)
class CancelReport:
    """Runs that were asked to stop, with their agents; ended ones are left out."""

    runs: tuple[tuple[RunId, AgentId], ...]


@dataclass(frozen=True, slots=True)
class SignalOutcome:
    """What became of a signal: `accepted` is False for a known id or an ended run.

    `same`: of a decision, whether exactly this one was given before.
    """

    accepted: bool
    agent_id: AgentId | None = None
    same: bool = False


@dataclass(frozen=True, slots=True)
class Surplus:
    """More shards than this host's share: `count` of `shards`, all of one type, are to be given back."""

    shards: tuple[ShardId, ...]
    count: int


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a heartbeat says: shards held here that the host does not know, lost ones, the time.

    Attributes:
        unknown: Shards that are this host's, but not among those it named.
        lost: The leases it named that are not its any more, as it named them.
        now: The store's time.
        surplus: What other hosts wait for; given back when it does no harm, idle shards first.
    """

    unknown: tuple[ShardId, ...]
    lost: tuple[ShardLease, ...]
    now: datetime
    surplus: tuple[Surplus, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up.

    Attributes:
        id: Names it for redrive.
        reason: ``max_retries``, ``explicit``, ``undecodable``, or ``unpublishable``: the broker took it
            for none that it could carry.
        attempts: How often it was tried.
    """

    id: int
    agent_id: AgentId
    message: Message
    reason: str
    attempts: int
    last_error: str
    run_id: RunId | None = None
    at: datetime | None = None
