"""RunStore: the only one who changes rows.

Every assembly has one: in memory, Postgres, and later Postgres behind a broker. A write is atomic,
fenced by the shard's owner and epoch under a lock, and safe to send again. Implementations group
concurrent calls; a stale turn never harms its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime

    from actors.kernel.agent.message import Message
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.blocking import Blocking
    from actors.kernel.runtime.commit import (
        Answer,
        Arrived,
        BufferedSignal,
        CancelReport,
        Commit,
        CommitOutcome,
        DeadLetter,
        HostReport,
        LoadedRun,
        NewRun,
        OpenWait,
        RunRow,
        SignalOutcome,
        Timer,
        WaitCycle,
        WaitKind,
    )
    from actors.kernel.runtime.fanout import PostStore
    from actors.kernel.runtime.follow_graph import FollowGraph
    from actors.kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
    from actors.kernel.runtime.insight import InsightStore
    from actors.kernel.runtime.limits import LimitStore
    from actors.kernel.runtime.log_entry import NewEntry, RunLogEntry
    from actors.kernel.runtime.schedule import ScheduleStore
    from actors.kernel.runtime.scheduler import Lease, RunStatus, ShardLease

OnConflict: TypeAlias = Literal["queue", "join", "reject", "interrupt"]


@dataclass(frozen=True, slots=True)
class Nudge:
    """A hint that something changed for an agent; facts are read from the store.

    `kind` run: a new queued run. mail: pending mail. signal: a buffered signal or an answer for
    `run_id`. cancel: `run_id` was asked to stop. fanout: posts for followers in `shard`.
    schedule: a schedule of the agent was written. shards: look for shards to claim.
    limits: a limit was changed. places: places of a limit are free, or wanted.
    life: another server, or another life of it, answers; it may be behind what was read before. Called
    before anything is asked of it.
    """

    kind: Literal[
        "run",
        "mail",
        "signal",
        "cancel",
        "fanout",
        "schedule",
        "shards",
        "limits",
        "places",
        "life",
    ]
    agent_id: AgentId | None = None
    run_id: RunId | None = None
    shard: ShardId | None = None


@dataclass(frozen=True, slots=True)
class Serves:
    """What a host can execute: whole types, and single agents."""

    types: tuple[str, ...] = ()
    agents: tuple[AgentId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are wanted; None does not choose.

    Attributes:
        type: Of these agents.
        tenant: Of this tenant's agents.
        since: Created at this instant or later.
        until: Created before this instant.
        parent: Spawned by this run.
        after: Behind this run in a list, newest first: for the next page.
    """

    type: str | None = None
    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    parent: RunId | None = None
    after: RunId | None = None


ANY_RUN: Final = RunFilter()


@dataclass(frozen=True, slots=True)
class Submitted:
    """What `submit` did.

    Attributes:
        run_id: The run of this message (the first one, for a message id that is known).
        arrived: The message's inbox row; None when the id was known.
        local: Whether this store's host owns the agent's shard, so no other process need be told.
    """

    run_id: RunId
    arrived: Arrived | None
    local: bool = True


class RunStore(Protocol):
    """Rows: logs, runs, inboxes, signals, state, shards. See the module's docstring."""

    # --- writing by the owner -------------------------------------------------------------------

    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        """Add entries to the run's log and return the last seq. Durable on return, whole or not at all.

        The run stays RUNNING. Sending the same call again after an unknown outcome is safe: the
        store looks the outcome up before it sends anything else of that group.

        Raises:
            LeaseLostError: The shard's owner or epoch is another one.
            ConcurrentAppendError: The log ends elsewhere; also when an earlier append was lost.
            IllegalTransitionError: The run has ended.
            PersistenceError: The database could not say within the time limit; outcome unknown.
        """
        ...

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Write one turn, all of it or nothing, and say what became of it.

        The outcome is a value, not an exception, because a group holds turns of many runs.
        An append and a turn of one run in one group are merged.

        Raises:
            PersistenceError: Outcome unknown after the time limit.
        """
        ...

    # --- writing by anybody -----------------------------------------------------------------------

    async def submit(
        self, new_run: NewRun, message: Message, *, on_conflict: OnConflict = "queue"
    ) -> Submitted:
        """Write the message's inbox row and its run, PENDING, in one commit.

        `message.sender` is the run's own order domain (``submit:<client>``). A known
        (agent, sender, id) returns the first run and changes nothing.

        Raises:
            RunConflictError: `on_conflict` is ``reject`` and the agent has an open run.
        """
        ...

    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        """Write pending inbox rows; return those that were not known. Each has sender and target set."""
        ...

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        """Buffer a signal for a run. A known (run, sender, id) or an ended run is not accepted.

        A name that begins with ``~`` is an operator's decision (`actors.kernel.runtime.decisions`). It is
        accepted only while the run is at the entry that its id names, and one for each such entry.
        Without an id of that form it is about what the run is at now.

        Raises:
            UnknownRunError: There is no such run.
        """
        ...

    async def request_cancel(self, run_id: RunId, *, reason: str) -> CancelReport:
        """Flag the run and its whole subtree; the owners write the ends.

        Raises:
            UnknownRunError: There is no such run.
        """
        ...

    async def answer(self, answer: Answer) -> SignalOutcome:
        """Keep what ends a wait of a run, and tell its owner; not accepted when the key has one.

        A person's decision is accepted only while the run waits for it.
        For those who are no run: a person who decides, a supervisor from outside.

        Raises:
            UnknownRunError: There is no such run.
        """
        ...

    # --- ownership --------------------------------------------------------------------------------

    async def declare(self, serves: Serves, *, partitions: int = 16) -> None:
        """Make types and agents known, so that they have shards. Idempotent.

        Raises:
            RegistrationError: A type is used as whole type and as single agents.
        """
        ...

    def shard_of(self, agent_id: AgentId) -> ShardId:
        """Return the shard of an agent whose type or self was declared through this store."""
        ...

    async def claim_shards(
        self, *, owner: HostIncarnation, serves: Serves, limit: int
    ) -> list[ShardLease]:
        """Take ownerless shards, and those of dead hosts, of what this host serves; epochs grow.

        Compare and swap per shard, in key order. Only leases come back; read the rest in pages.
        Hosts that serve the same type have fair shares of it. What nobody serves falls to anybody.
        With nothing in `serves` this host wants nothing any more: what it holds becomes surplus.
        """
        ...

    async def release_shards(self, leases: Sequence[ShardLease]) -> None:
        """Give shards up so that others take them at once. Unknown or lost ones are ignored."""
        ...

    async def heartbeat(self, owner: HostIncarnation, known: Sequence[ShardLease]) -> HostReport:
        """Keep this host alive for another lease time and compare what it holds."""
        ...

    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        """Call `hook` on the event loop for changes made by other processes. Hints: may be lost."""
        ...

    # --- reading for the owner, in pages ------------------------------------------------------------

    async def open_runs(
        self, shards: Sequence[ShardId], *, after: RunId | None = None, limit: int = 1000
    ) -> list[RunRow]:
        """Return runs of these shards that have not ended, by run id, after `after`."""
        ...

    async def blockings(self, shards: Sequence[ShardId]) -> list[Blocking]:
        """Return the runs of these shards whose code made hosts give them up: see `Blocking`.

        Such a mark is written in the commit that gives the shard up. Those of runs that have gone
        on since may be among them.
        """
        ...

    async def pending_mail(
        self,
        *,
        shards: Sequence[ShardId] = (),
        agent: AgentId | None = None,
        after: int = -1,
        limit: int = 1000,
    ) -> list[Arrived]:
        """Return inbox rows that belong to no run yet, by arrival, after `after`."""
        ...

    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        """Return rows and logs of several runs in one round trip; unknown ids are left out."""
        ...

    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        """Return the run's signals that are not consumed, in arrival order."""
        ...

    async def answers(self, run_id: RunId) -> list[Answer]:
        """Return the run's answers that are not consumed, whether it waits for them or not."""
        ...

    async def wait_cycles(
        self, shards: Sequence[ShardId], *, younger_than_s: float
    ) -> list[WaitCycle]:
        """Return cycles that two commits closed at the same moment, each once: one wait has to fail.

        That of the greatest run id of the cycle, when its agent is in these shards.
        """
        ...

    async def unnoticed(self, shards: Sequence[ShardId], *, younger_than_s: float) -> list[Nudge]:
        """Return what the owner of these shards may not have heard of, because a hint was lost.

        Children that wait to be started (run) and answers for suspended runs (signal), written within
        so many seconds; open runs that were asked to stop (cancel).
        """
        ...

    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        """Return the agent's state."""
        ...

    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 10_000
    ) -> list[Timer]:
        """Return timers of waiting runs that are due within so many seconds, earliest first."""
        ...

    # --- reading for everybody -----------------------------------------------------------------------

    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the log from `from_seq` to its present end."""
        ...

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the log from `from_seq`, then what is appended; ends after a terminal entry."""
        ...

    async def run(self, run_id: RunId) -> RunRow | None:
        """Return one run's row."""
        ...

    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        """Return the run that holds the agent (it has started), else the oldest queued one."""
        ...

    async def list_runs(
        self,
        *,
        status: Sequence[RunStatus] = (),
        agent: AgentId | None = None,
        parked: bool | None = None,
        among: RunFilter = ANY_RUN,
        limit: int = 100,
    ) -> list[RunRow]:
        """Return runs, newest first. An unknown run as `among.after` gives nothing."""
        ...

    async def children(self, run_id: RunId) -> list[RunRow]:
        """Return the runs spawned by this one that are still its children, in the order of creation."""
        ...

    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        """Return the run that got this message, else the one that holds the agent, else None."""
        ...

    async def waits(
        self, *, kind: WaitKind | None = None, run_id: RunId | None = None, limit: int = 100
    ) -> list[OpenWait]:
        """Return waits of open runs that have no answer yet, oldest first; of one kind, or of one run."""
        ...

    async def pending_count(self, agent_id: AgentId) -> int:
        """Return how many messages of the agent are not done: pending ones and those of open runs."""
        ...

    async def refold(self, run_id: RunId) -> RunRow:
        """Return the run's row as its log alone tells it; equal to `run()` or something is wrong.

        Raises:
            UnknownRunError: There is no such run.
        """
        ...

    # --- dead letters --------------------------------------------------------------------------------

    async def dead_letters(
        self, *, agent: AgentId | None = None, ids: Sequence[int] = (), limit: int = 100
    ) -> list[DeadLetter]:
        """Return messages that were given up and not redriven, newest first; of `ids`, if any are given."""
        ...

    async def discard(self, ids: Sequence[int]) -> int:
        """Forget dead letters for good; return how many there were. Redriven ones are left alone."""
        ...

    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        """Deliver dead letters again as new messages (id derived from the old one); each id once.

        Not those of a run that was redriven; a run of which one was given back is not redriven any more.
        """
        ...

    async def redrive_run(self, run_id: RunId) -> Submitted:
        """Start a dead run's work again: a new run with the same messages, in one commit; once.

        Its id is derived from the dead one's. It has no parent and the dead one's priority and policy.
        Dead letters of what the dead run began with count as redriven.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It has not failed.
            AlreadyRedrivenError: Dead letters of it were given back by `redrive`.
        """
        ...

    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        """Queue a run that goes on from entry `at_seq` of another run's log; durable on return.

        Its id is derived from run, seq and `copy`: the same three again name the same run. It has no
        parent, no messages, and the other run's priority, policy, version and terms. Its own log is
        empty until its agent's turn comes; then its owner copies the entries (`RunRow.fork` says
        which). Whether it makes sense there is the caller's question: see `actors.runtime.forking`.

        Raises:
            UnknownRunError: There is no such run, or it was swept.
            ContractError: Its log does not reach `at_seq`.
        """
        ...

    async def sweep(self, *, older_than_s: float, limit: int = 200) -> int:
        """Take away what runs leave behind that ended longer ago; return how many were taken, of `limit`.

        Log, result, signals and answers go; the row stays as a tombstone (`RunRow.swept`): its id and
        its message's still name it, and it has a status. Runs with retention NONE go whatever their age.
        Whoever joined one has its answer. Safe to call from several hosts at once.
        """
        ...

    # --- followers ------------------------------------------------------------------------------------

    @property
    def follows(self) -> FollowGraph:
        """Who follows what, in these rows."""
        ...

    @property
    def posts(self) -> PostStore:
        """Posts on their way to followers."""
        ...

    # --- schedules ------------------------------------------------------------------------------------

    @property
    def schedules(self) -> ScheduleStore:
        """Messages that come by themselves."""
        ...

    # --- limits ---------------------------------------------------------------------------------------

    @property
    def limits(self) -> LimitStore:
        """How many runs execute at once and start per second, over all hosts."""
        ...

    # --- for operators --------------------------------------------------------------------------------

    @property
    def insight(self) -> InsightStore:
        """What operators look at."""
        ...
