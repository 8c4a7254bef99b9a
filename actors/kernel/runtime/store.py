"""RunStore: the only one who changes rows.

Every assembly has one: in memory, Postgres, and later Postgres behind a broker. A write is atomic,
fenced by the shard's owner and epoch under a lock, and safe to send again. Implementations group
concurrent calls; a stale turn never harms its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from actors.kernel.agent.message import Message
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import (
        Arrived,
        BufferedSignal,
        CancelReport,
        Commit,
        CommitOutcome,
        DeadLetter,
        HostReport,
        LoadedRun,
        NewRun,
        RunRow,
        SignalOutcome,
        Timer,
    )
    from actors.kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
    from actors.kernel.runtime.log_entry import NewEntry, RunLogEntry
    from actors.kernel.runtime.scheduler import Lease, RunStatus, ShardLease

OnConflict: TypeAlias = Literal["queue", "join", "reject", "interrupt"]


@dataclass(frozen=True, slots=True)
class Nudge:
    """A hint that something changed for an agent; facts are read from the store.

    `kind` run: a new queued run. mail: pending mail. signal: a buffered signal for `run_id`.
    cancel: `run_id` was asked to stop. shards: look for shards to claim.
    """

    kind: Literal["run", "mail", "signal", "cancel", "shards"]
    agent_id: AgentId | None = None
    run_id: RunId | None = None


@dataclass(frozen=True, slots=True)
class Serves:
    """What a host can execute: whole types, and single agents."""

    types: tuple[str, ...] = ()
    agents: tuple[AgentId, ...] = ()


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
        limit: int = 100,
    ) -> list[RunRow]:
        """Return runs, newest first."""
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
        self, *, agent: AgentId | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Return messages that were given up and not redriven, newest first."""
        ...

    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        """Deliver dead letters again as new messages (id derived from the old one); each id once."""
        ...
