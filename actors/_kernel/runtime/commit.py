"""A commit of a run as a value: its rows, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from actors._kernel.agent.agent import HistoryRetention, SessionChange
from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.agent.transcript import NewCut, NewTurn
from actors._kernel.json import JsonValue
from actors._kernel.runtime.communication import FollowMode
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, TopicId
from actors._kernel.runtime.log_entry import NewEntry
from actors._kernel.runtime.rows import Arrived, NewRun
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.runtime.waits import Answer, Wait, WaitCycle, WakeSet


@dataclass(frozen=True, slots=True)
class Continue:
    """The run keeps executing: status RUNNING."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """The run waits as rows only: status SUSPENDED until something in `wake` happens."""

    wake: WakeSet


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: PENDING, not to be started before `at`; counts one attempt.

    `release` are messages that the run gives back, bound or not: they wait again, each at its position, and
    each for a run that is given nothing else (`Arrived.alone`).
    """

    at: datetime
    error: dict[str, JsonValue]
    retry_from: int
    release: tuple[MessageKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The run has ended: status COMPLETED, FAILED or CANCELLED.

    Its bound messages become done; with `dead_letter` set they become dead letters of that reason.
    """

    status: RunStatus
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True)
class Park:
    """The run waits for an operator: status SUSPENDED with a reason, until resolved or cancelled."""

    reason: str
    position: str = ""


Then: TypeAlias = Continue | Suspend | Retry | Finish | Park
CONTINUE: Final = Continue()


@dataclass(frozen=True, slots=True)
class Spawned:
    """A child to be created with its parent's commit.

    Attributes:
        run: The child, with parent, root and depth. It starts with its parent's cancel flag.
        position: Position of the spawn in the parent, to name it when the tree's budget refuses it.
        boot: The child's first message, bound to it, with sender ``spawn:<parent's agent>``, or None if it
            starts with an empty inbox.
    """

    run: NewRun
    position: str
    boot: Message | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that leaves with a commit. `message.id`, `sender` and target identify it for ever.

    To a topic it is a post: every follower of the commit's moment gets it.
    """

    message: Message
    sender: str
    target: AgentId | TopicId


class SignalKey(NamedTuple):
    """The identity of a buffered signal of a run: its name, and its number in arrival order."""

    name: str
    n: int


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
    """A commit's addition to its tree's account, at the root. Only for trees with an execution budget.

    Attributes:
        tokens: Used, input and output.
        cost_usd: Spent.
        turns: Model calls that begin; such a turn is refused when the budget does not allow them,
            or tokens or money are used up already.
        position: Position of the call that begins, to name it when it is refused.
    """

    tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0
    position: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a run: all of it becomes durable or nothing.

    Attributes:
        lease: Fences the write: shard owner and epoch are compared under a lock.
        expected_seq: The last seq that the run's log must have now (-1: empty).
        entries: Entries to append in order after `expected_seq`.
        then: What becomes of the run.
        create: The run's row, when this commit starts a run from waiting messages.
        bind: Pending messages that become this run's; all must still be pending, and nothing older of
            their senders may be left behind.
        any_order: What is bound may overtake; for callers that handle messages one by one.
        outgoing: Messages to send, in this order.
        take_signals: Buffered signals consumed; all must still be there.
        take_answers: Keys of answers consumed; all must still be there.
        state: Values of the agent's state to write; `DELETED` removes a key.
        spawned: Children to create, counted against the tree's budget.
        answers: Replies to asks that this run's agent got.
        waits: All waits that are open now, instead of those before, or None if they stay as they are.
            A run's waits are gone when it ends.
        known_waits: Those that are rows before, where that is known: a store may write the difference.
        follows: Applied in order, before any post of this commit.
        orphans: With `Finish`: what becomes of children that are still open. RUN and NONE: they and
            all below are asked to stop; PERMANENT: they become children of the root.
        budget: What this commit spends.
        withdraw: Questions of this run that were refused: those that have not begun are removed.
        unless_answered: Keys of waits that end without an answer: no answer may be there by now.
        attempt: The attempt that is executing, 1 for the first; kept with the run.
        turns: Put at the end of sessions of this run's agent, in this order; ids that a session has are
            left out.
        cuts: Beginnings of the next windows of its sessions, after the turns of this commit.
        clear_turns: All turns of the run go, those of this commit too, from all sessions.
        session: What it means for the session that its agent is.
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
    known_waits: tuple[Wait, ...] | None = None
    follows: tuple[FollowChange, ...] = ()
    orphans: HistoryRetention | None = None
    budget: BudgetDelta | None = None
    withdraw: tuple[MessageKey, ...] = ()
    unless_answered: tuple[str, ...] = ()
    attempt: int = 1
    turns: tuple[NewTurn, ...] = ()
    cuts: tuple[NewCut, ...] = ()
    clear_turns: bool = False
    session: SessionChange | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is durable.

    Attributes:
        last_seq: The last seq of the log after the commit.
        cancel_requested: Reason, if this run was asked to stop.
        routed: Outgoing messages that became inbox rows here and now; known ids are left out.
        wake_now: After `Suspend`: something it waits for is there already; run it again.
        cycles: Waits of this run that can never end.
        nudges: What this commit changed for agents of this host's shards: answers for waiting runs
            (signal), runs to stop (cancel), posts to bring to followers (fanout), and, after an
            unknown outcome, children to start (run). The store notifies other owners.
        spawned: Children of agents of this host's shards, each with its position in the agent's queue,
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
    """Outcome: another host owns the shard. Drop it and everything in it."""


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
    """Outcome: nothing was written, as an older message of the same senders waits and is not bound with it.

    If a run begins, the older one may also be a queued run. Read what the agent has waiting again, oldest
        first. No hint has to have come for that.
    """

    keys: tuple[MessageKey, ...]


@dataclass(frozen=True, slots=True)
class OverBudget:
    """The tree's budget does not allow what the commit begins at these positions; nothing was written.

    Execute the run again from what is durable, and let these calls raise. Of several spawns the
    first ones that fit are not named.

    Attributes:
        positions: Positions of the refused spawns, or of the refused model call.
        limit: The limit with its number, for example ``max_runs 50``.
    """

    positions: tuple[str, ...]
    limit: str


@dataclass(frozen=True, slots=True)
class Answered:
    """Answers with these keys came before the end of their waits; nothing was written.

    Write the commit again with the answers instead of those ends.
    """

    keys: tuple[str, ...]


CommitOutcome: TypeAlias = (
    Committed | LeaseLost | Conflict | Missing | OutOfOrder | OverBudget | Answered
)
