"""Runs in a store: arrivals, commits, reads, lists, and operators' changes.

An arrival comes to an agent or a run from outside a commit. A commit is what the owner of a run writes, and
hands its rows over to readers. Lists are for those who do not know the ids. Operators change runs and redrive
dead letters, and delete old rows. Here is also what remains of code that does not let the event loop go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from actors._kernel.agent.message import Message
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Commit, CommitOutcome
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.log_entry import NewEntry, RunLogEntry
from actors._kernel.runtime.rows import (
    Arrived,
    BufferedSignal,
    CancelReport,
    DeadLetter,
    LoadedRun,
    NewRun,
    RunRow,
    SignalOutcome,
)
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.runtime.waits import Answer, OpenWait, WaitPlace
from actors._kernel.stores.conversations import SessionFact
from actors._kernel.stores.forgotten import Forgotten
from actors.errors import ContractError

MOST_ANSWERED: Final = 2000
"""Runs whose waits one call of `emit` answers: it holds their rows."""
OnConflict: TypeAlias = Literal["queue", "join", "reject", "interrupt"]
CONFLICT_RULES: Final = get_args(OnConflict)


def check_on_conflict(rule: object) -> None:
    """Check that this is a rule for an agent that has an open run.

    Raises:
        ContractError: It is not.
    """
    if rule not in CONFLICT_RULES:
        rules = ", ".join(CONFLICT_RULES)
        raise ContractError(f"on_conflict is one of {rules}, not {str(rule)[:40]!r}")


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of `submit`.

    Attributes:
        run_id: The run of this message (the first one, for a message id that is known).
        arrived: The message's inbox row; None when the id was known.
        local: True if this store's host owns the agent's shard, so no other process has to be notified.
    """

    run_id: RunId
    arrived: Arrived | None
    local: bool = True


def sender_of_message(message: Message) -> str:
    """Return who sent it.

    Raises:
        ContractError: It was not sent yet.
    """
    if message.sender is None:
        msg = f"message {message.id} has no sender: order and dedup are per sender"
        raise ContractError(msg)
    return message.sender


def ends_of(message: Message) -> tuple[str, AgentId]:
    """Return sender and receiver of messages.

    Raises:
        ContractError: It was not sent yet, or goes to a topic.
    """
    if not isinstance(message.target, AgentId):
        msg = f"message {message.id} goes to topic {message.target}: only agents have an inbox"
        raise ContractError(msg)
    return sender_of_message(message), message.target


class ArrivalStore(Protocol):
    """Writes that need no lease: new runs, messages, signals, answers and cancels."""

    async def submit(
        self,
        new_run: NewRun,
        message: Message,
        *,
        on_conflict: OnConflict = "queue",
        is_apart: bool = False,
    ) -> Submitted:
        """Write the message's inbox row and its run, PENDING, in one commit.

        `message.sender` is the run's own order domain (``submit:<client>``). A known
        (agent, sender, id) returns the first run and changes nothing.

        Args:
            new_run: The run.
            message: Its first message.
            on_conflict: The action if the agent has an open run.
            is_apart: Only a run that the message's sender started (`started_by`) is joined or
                interrupted.

        Raises:
            RunConflictError: The agent has an open run, and `on_conflict` is ``reject``, or ``join`` or
                ``interrupt`` and the run is not the sender's.
        """

    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        """Write pending inbox rows; return those that were not known. Each has sender and target set."""

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        """Buffer a signal for a run. A known (run, sender, id) or an ended run is not accepted.

        A name that begins with ``~`` is an operator's decision (`actors._kernel.runtime.rows`). It is
        accepted only while the run is at the entry that its id names, and one for each such entry.
        Without an id of that form it is about what the run is at now.

        Raises:
            UnknownRunError: There is no such run.
        """

    async def request_cancel(self, run_id: RunId, *, reason: str) -> CancelReport:
        """Flag the run and its whole subtree; the owners write the ends.

        Raises:
            UnknownRunError: There is no such run.
        """

    async def answer(self, answer: Answer) -> SignalOutcome:
        """Keep the answer to a wait of a run, and notify its owner; not accepted when the key has one.

        A person's decision is accepted only while the run waits for it.
        For those who are no run: a person who decides, a supervisor from outside.

        Raises:
            UnknownRunError: There is no such run.
        """

    async def emit(
        self, event: str, payload: JsonValue, *, after: str = "", limit: int = MOST_ANSWERED
    ) -> list[tuple[RunId, AgentId]]:
        """Answer the open waits of some runs for an event, and notify their owners; return the waits by run.

        Waits that have an answer are left. Call again with `after` until none are answered: no run, which may
        wait for the same event again meanwhile, is then reached twice. Each call is whole or not at all.

        Args:
            event: See `event_id`.
            payload: The answer.
            after: Only runs with larger ids than this one.
            limit: Maximum number of runs.
        """


async def emit_to_all(
    store: ArrivalStore, event: str, payload: JsonValue
) -> AsyncIterator[list[tuple[RunId, AgentId]]]:
    """Answer all open waits for an event, each run once; yield the runs of each call of `emit`."""
    after = ""
    while runs := await store.emit(event, payload, after=after):
        yield runs
        after = runs[-1][0]


class CommitStore(Protocol):
    """Writes logs: each call is fenced by the lease of its run's shard."""

    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        """Add entries to the run's log and return the last seq. Durable on return, whole or not at all.

        The run stays RUNNING. Sending the same call again after an unknown outcome is safe: the
        store looks the outcome up before it sends anything else of that group.

        Raises:
            LeaseLostError: The shard's owner or epoch is another one.
            ConcurrentAppendError: The log ends elsewhere; also when an earlier append was lost.
            OutOfOrderError: A queued run may not begin: something older of its sender waits.
            IllegalTransitionError: The run has ended.
            PersistenceError: The database could not say within the time limit; outcome unknown.
        """

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Write one commit, all of it or nothing, and say what became of it.

        The outcome is a value, not an exception, because a group holds commits of many runs.
        An append and a commit of one run in one group are merged.

        Raises:
            PersistenceError: Outcome unknown after the time limit.
        """


T = TypeVar("T")

SMALL_STATE_KEYS: Final = 100
SMALL_STATE_BYTES: Final = 16_384
"""A state of no more keys and bytes is read as a whole."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """Keys of an agent's state and their values; `is_whole`: it has no others."""

    values: Mapping[str, JsonValue]
    is_whole: bool


class ReadStore(Protocol):
    """A run or an agent's state, by its id."""

    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        """Return rows and logs of several runs in one round trip; unknown ids are left out."""

    async def run(self, run_id: RunId) -> RunRow | None:
        """Return one run's row."""

    async def started_by(self, run_id: RunId) -> str | None:
        """Return the sender of all messages that the run's tree began with, started or not.

        None if there were several, or none, or it is not known any more, or there is no such run.
        """

    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        """Return the run's signals that are not consumed, in arrival order."""

    async def answers(self, run_id: RunId) -> list[Answer]:
        """Return the run's answers that are not consumed, whether it waits for them or not."""

    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        """Return the agent's state."""

    async def state_at(self, agent_id: AgentId, key: str) -> StatePart:
        """Return one key of the agent's state if it is there; of a small state all keys."""

    async def tokens_left(self, run_id: RunId) -> int | None:
        """Return how many tokens the run's tree may still use, or None if its budget limits none."""

    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the log from `from_seq` to its present end."""

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the log from `from_seq`, then what is appended.

        Ends after a terminal entry, and when a run that was there is there no more.
        """


class Handed(Generic[T]):
    """Numbered rows that commits of this process have handed to a reader, which then need not read them.

    Args:
        number: Returns the number of a row.
        begin: Number of the first row that is wanted.
        most: Number of rows from which on a slow reader is handed no more. It reads them instead.

    Attributes:
        begin: Number of the next row.
        on_news: Called when there are more rows.
        has_to_read: True if there may be rows that were not handed over.
    """

    def __init__(self, number: Callable[[T], int], begin: int, most: int) -> None:
        self.begin, self.has_to_read = begin, True
        self.on_news: Callable[[], object] = lambda: None
        self._number, self._most = number, most
        self._rows: deque[T] = deque()

    def hand(self, rows: Sequence[T]) -> None:
        """Take the rows of a commit; none: they have to be read."""
        if not rows or len(self._rows) >= self._most:
            self._rows.clear()
            self.has_to_read = True
        else:
            self._rows += rows
        self.on_news()

    def take(self) -> list[T]:
        """Return the handed rows from `begin` on. If rows before them are missing, all have to be read."""
        rows: list[T] = []
        while self._rows:
            row = self._rows.popleft()
            number = self._number(row)
            if number > self.begin:
                self._rows.clear()
                self.has_to_read = True
            elif number == self.begin:
                rows.append(row)
                self.begin += 1
        return rows


class FollowedRuns(Protocol):
    """Runs that this process has submitted lately and executes: their rows are kept for one reader each.

    The reader has to read the store if the rows say so, or if no entry comes for a while.
    """

    def entries_of(self, run_id: RunId) -> AbstractContextManager[Handed[RunLogEntry] | None]:
        """Yield the entries of a run from its first one on, or None if they are not kept."""

    def facts_of(
        self, agent: AgentId, *, after: int
    ) -> AbstractContextManager[Handed[SessionFact] | None]:
        """Yield the facts of a session after this one, or None if they are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter of runs. A field that is None does not filter.

    Attributes:
        type: Only runs of agents of this type.
        tenant: Only runs of this tenant's agents.
        since: Created at this instant or later.
        until: Created before this instant.
        parent: Spawned by this run.
        after: Id of the last run of the previous page; the list has the newest first.
    """

    type: str | None = None
    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    parent: RunId | None = None
    after: RunId | None = None


ANY_RUN: Final = RunFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalFilter:
    """A filter of what waits for a person. A field that is None does not filter.

    Attributes:
        run_id: Only approvals of this run.
        tenant: Only approvals of runs of this tenant.
        owner: Only approvals of runs of this principal's sessions, and of runs below them.
        key: Its key begins so.
        after: Position of the last row of the previous page.
    """

    run_id: RunId | None = None
    tenant: str | None = None
    owner: str | None = None
    key: str | None = None
    after: WaitPlace | None = None


ANY_APPROVAL: Final = ApprovalFilter()


@dataclass(frozen=True, slots=True)
class TaskRun:
    """An ended run that was spawned, and what its log takes.

    Attributes:
        run_id: The run.
        agent_id: Its agent.
        task: The id of the card that it was for; empty: for none.
        status: The run's end status.
        ended_at: The instant of the end, aware UTC.
        entries: Number of entries of its log.
        size_bytes: Size of their payloads as JSON.
    """

    run_id: RunId
    agent_id: AgentId
    task: str
    status: RunStatus
    ended_at: datetime
    entries: int
    size_bytes: int


class ListStore(Protocol):
    """Lists of runs, waits and dead letters, by their attributes."""

    async def runs(
        self,
        *,
        status: Sequence[RunStatus] = (),
        agent: AgentId | None = None,
        parked: bool | None = None,
        among: RunFilter = ANY_RUN,
        limit: int = 100,
    ) -> list[RunRow]:
        """Return runs, newest first. An unknown run as `among.after` gives nothing."""

    async def children(self, run_id: RunId) -> list[RunRow]:
        """Return the runs spawned by this one that are still its children, in the order of creation."""

    async def tasks(
        self, agent_id: AgentId, *, status: Sequence[RunStatus], every: bool = False
    ) -> list[TaskRun]:
        """Return ended runs below those of an agent that were spawned for a task and have logs, by id.

        Args:
            agent_id: The agent of runs at the top of trees.
            status: Only runs that ended with this status.
            every: Also runs that were spawned for no task, and those whose logs were swept.
        """

    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        """Return the run that holds the agent (it has started), else the oldest queued one."""

    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        """Return the run that got this message, else the one that holds the agent, else None."""

    async def waits(self, run_id: RunId, *, limit: int = 100) -> list[OpenWait]:
        """Return the waits of an open run that have no answer yet, oldest first."""

    async def approvals(
        self, among: ApprovalFilter = ANY_APPROVAL, *, limit: int = 100
    ) -> list[OpenWait]:
        """Return what open runs wait for a person to decide, oldest first. A page costs what it shows.

        With `owner` it is found by looking through the approvals of others, too.
        """

    async def pending_count(self, agent_id: AgentId) -> int:
        """Return how many messages of the agent are not done: pending ones and those of open runs."""

    async def dead_letters(
        self, *, agent: AgentId | None = None, ids: Sequence[int] = (), limit: int = 100
    ) -> list[DeadLetter]:
        """Return messages that were given up and not redriven, newest first; of `ids`, if any are given."""


ARTIFACT_GRACE_S: Final = 86_400.0
"""Hosts keep an artifact without a pin for so long."""
USAGE_KEPT_S: Final = 400 * 86_400.0
"""Totals of usage are kept for so long at least: a year and the month in which it is billed."""
AUDIT_KEPT_S: Final = USAGE_KEPT_S
"""Audit rows are kept for so long at least."""


def agent_scope(agent: AgentId) -> str:
    """Return the scope of the artifacts that are an agent's, which go when it is forgotten."""
    return f"agent:{agent}"


class OperatorStore(Protocol):
    """Operators' changes of runs and dead letters."""

    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        """Queue a run that goes on from entry `at_seq` of another run's log; durable on return.

        Its id is derived from run, seq and `copy`: the same three again name the same run. It has no
        parent, no messages, and the other run's priority, policy, version and terms. Its own log is
        empty until its agent's turn comes; then its owner copies the entries (`RunRow.fork` says
        which). Whether it makes sense there is the caller's question: see `actors._runtime.worker.launcher`.

        Raises:
            UnknownRunError: There is no such run, or it was swept.
            ContractError: Its log does not reach `at_seq`.
        """

    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        """Deliver dead letters again as new messages (id derived from the old one); each id once.

        Not those of a redriven run. A run cannot be redriven once one of its dead letters was sent again.
        """

    async def redrive_run(self, run_id: RunId) -> Submitted:
        """Start a dead run's work again: a new run with the same messages, in one commit; once.

        Its id is derived from the dead one's. It has no parent and the dead one's priority and policy.
        Dead letters of messages that the dead run began with count as redriven.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It has not failed.
            AlreadyRedrivenError: Dead letters of it were sent again by `redrive`.
        """

    async def discard(self, ids: Sequence[int]) -> int:
        """Forget dead letters for good; return how many there were. Redriven ones are left alone."""

    async def refold(self, run_id: RunId) -> RunRow:
        """Return the run's row as its log alone describes it. It equals `run()`, or there is a defect.

        Raises:
            UnknownRunError: There is no such run.
        """


class RetentionStore(Protocol):
    """Takes away what is old, in small batches."""

    async def sweep(self, *, older_than_s: float | None, limit: int = 200) -> int:
        """Sweep at most `limit` runs that ended longer ago; return the number of swept runs.

        Log, result, signals and answers are removed. The row stays as a tombstone (`RunRow.swept`) with its
        status, and is found by its id and its message's id. Runs with retention NONE are swept at any age;
        without `older_than_s` only they are. A caller that joined a run keeps its answer. Several hosts may
        call this at once.
        """

    async def sweep_these(self, run_ids: Sequence[RunId]) -> int:
        """Sweep these runs, as `sweep` does; return the number of swept runs.

        Open runs and swept runs stay as they are. Each call is executed as a whole or not at all.
        """

    async def forget_old(self, *, older_than_s: float | None, limit: int = 2000) -> int:
        """Forget what is older than this and than 8 days; return how many rows, of each kind at most `limit`.

        Tombstones go, then the ids of their messages, and dead letters, but for those whose run could be
        redriven in their place; and totals of usage that are older than `USAGE_KEPT_S`, and audit rows that
        are older than `AUDIT_KEPT_S`. Without `older_than_s` all of these stay. Whatever it is, ids that name
        no run go after 8 days, and artifacts without a pin after `ARTIFACT_GRACE_S`. Fewer than `limit`:
        nothing of that age is left, or it is found at a later call, or other hosts are at it. Safe to call
        from several hosts at once.
        """

    async def forget_agent(
        self, agent_id: AgentId, *, cancel: bool = False, limit: int = 200
    ) -> Forgotten:
        """Remove the agent's rows, of messages, dead letters and runs at most `limit` each.

        While a run of it is open nothing; with `cancel` its waiting messages, and the open runs are asked to
        stop. Ids of its messages stay known. Each call is whole or not at all; nothing is written by the
        agent's owner meanwhile. Copies of other agents stay: answers of its runs, messages on their way.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """The code that blocks this host's event loop now.

    Attributes:
        place: Function, file and line.
        agent_id: The agent whose code it is, or None if it is not known.
        run_id: The run that executes it.
        shard: The agent's.
        in_doubt: Shards in which an effect is under way that would be in doubt elsewhere.
    """

    place: str
    agent_id: AgentId | None = None
    run_id: RunId | None = None
    shard: ShardId | None = None
    in_doubt: frozenset[ShardId] = frozenset()

    @property
    def who(self) -> str:
        """The agent and its run, for people."""
        if self.agent_id is None:
            return "code of no agent"
        return f"agent {self.agent_id}, run {self.run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Hosts gave up the shard of a run because its code blocked them for too long.

    Attributes:
        run_id: The run; it may have no row, if that was before its first commit.
        seqs: The last seq of its log each time, -1 when it was empty.
        place: Function, file and line of the last time.
    """

    run_id: RunId
    seqs: tuple[int, ...]
    place: str
