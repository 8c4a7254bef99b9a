"""RunStore: the only one who changes rows; `DataStores`: the content beside the runs.

Every assembly has one: in memory, Postgres, and Postgres behind a broker. A write is atomic,
fenced by the shard's owner and epoch under a lock, and safe to send again. Implementations group
concurrent calls; a stale commit never harms its neighbours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from actors._kernel.runtime.hints import Nudge
from actors._kernel.stores.administration import UsageStore
from actors._kernel.stores.artifacts import ArtifactStores
from actors._kernel.stores.conversations import SessionStore, TranscriptStore
from actors._kernel.stores.insight import InsightStore
from actors._kernel.stores.limits import LimitStore
from actors._kernel.stores.runs import (
    ArrivalStore,
    CommitStore,
    FollowedRuns,
    ListStore,
    OperatorStore,
    ReadStore,
    RetentionStore,
)
from actors._kernel.stores.schedule import ScheduleStore
from actors._kernel.stores.shards import BacklogStore, ShardStore
from actors._kernel.stores.topics import FollowGraph, PostStore

if TYPE_CHECKING:
    from actors._kernel.runtime.hints import LogHints
    from actors._kernel.stores.administration import AuditStore, ErasureStore, TokenStore
    from actors._kernel.stores.conversations import SessionDirectory
    from actors._kernel.stores.flows import FlowBundleStore, RunSnapshotStore
    from actors._kernel.stores.memory import LongTermMemories


class RunStore(Protocol):
    """Rows, by role: logs, runs, inboxes, signals, state, shards. See the module's docstring."""

    commits: CommitStore
    """Writes of the owners of runs."""
    arrivals: ArrivalStore
    """Writes that any process may make."""
    shards: ShardStore
    """Ownership of shards."""
    backlog: BacklogStore
    """Work of the owner of shards."""
    reads: ReadStore
    """Runs and state, by id."""
    followed: FollowedRuns | None = None
    """Rows that commits hand over to readers, or None if readers read them."""
    lists: ListStore
    """Lists of runs, waits and dead letters."""
    operators: OperatorStore
    """Operators' changes of runs and dead letters."""
    retention: RetentionStore
    """Takes away what is old."""
    insight: InsightStore
    """Reads for operators."""
    follows: FollowGraph
    """Followers of topics."""
    posts: PostStore
    """Posts on their way to followers."""
    schedules: ScheduleStore
    """Messages that come by themselves."""
    limits: LimitStore
    """Limits of runs that execute at once and that start per second, over all hosts."""
    data: DataStores
    """Stores of conversations, memories, artifacts, and of what operators and callers keep."""

    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        """Call `hook` on the event loop for changes made by other processes. Hints: may be lost."""

    def prefer_log_hints(self, hints: LogHints) -> None:
        """Exchange hints that logs have grown by these, while they are connected."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Understand the attributes of the release before, which are those of `data` now."""
            if name not in DataStores.__annotations__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            warnings.warn(
                f"store.{name} is now store.data.{name}; the old name goes with the next release",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(self.data, name)


class DataStores(Protocol):
    """Stores beside the runs: of conversations, memories and artifacts, and of what operators keep."""

    transcripts: TranscriptStore
    """Conversations of agents."""
    sessions: SessionStore
    """Facts and heads of sessions."""
    directory: SessionDirectory
    """Names and lists of sessions."""
    tokens: TokenStore
    """Tokens of the API."""
    artifacts: ArtifactStores
    """Large bytes, by tenant and scope."""
    flow_bundles: FlowBundleStore
    """Installed bundles of flows, by tenant."""
    run_snapshots: RunSnapshotStore
    """Snapshots of runs of graphs, by tenant."""
    audit: AuditStore
    """Changes that principals made, by tenant."""
    memories: LongTermMemories
    """Texts that agents keep, by tenant."""
    usage: UsageStore
    """Totals of what model calls used and cost."""
    erasure: ErasureStore
    """The parts of an erase."""
