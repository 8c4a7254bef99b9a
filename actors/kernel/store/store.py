"""RunStore: the only one who changes rows.

Every assembly has one: in memory, Postgres, and Postgres behind a broker. A write is atomic,
fenced by the shard's owner and epoch under a lock, and safe to send again. Implementations group
concurrent calls; a stale commit never harms its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from actors.kernel.runtime.hints import Nudge
from actors.kernel.storage.blob import ArtifactStores
from actors.kernel.storage.session import SessionStore
from actors.kernel.storage.transcript import TranscriptStore
from actors.kernel.storage.usage import UsageStore
from actors.kernel.store.arrivals import ArrivalStore
from actors.kernel.store.commits import CommitStore
from actors.kernel.store.fanout import PostStore
from actors.kernel.store.follow_graph import FollowGraph
from actors.kernel.store.insight import InsightStore
from actors.kernel.store.limits import LimitStore
from actors.kernel.store.lists import ListStore
from actors.kernel.store.operators import OperatorStore, RetentionStore
from actors.kernel.store.reads import FollowedRuns, ReadStore
from actors.kernel.store.schedule import ScheduleStore
from actors.kernel.store.shards import BacklogStore, ShardStore

if TYPE_CHECKING:
    from actors.kernel.runtime.hints import LogHints
    from actors.kernel.storage.audit import AuditStore
    from actors.kernel.storage.erasure import ErasureStore
    from actors.kernel.storage.flow_bundles import FlowBundleStore
    from actors.kernel.storage.memory import LongTermMemories
    from actors.kernel.storage.run_snapshots import RunSnapshotStore
    from actors.kernel.storage.session_directory import SessionDirectory
    from actors.kernel.storage.token import TokenStore


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
    """Rows that commits hand over to readers; None: readers read them."""
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

    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        """Call `hook` on the event loop for changes made by other processes. Hints: may be lost."""

    def prefer_log_hints(self, hints: LogHints) -> None:
        """Exchange hints that logs have grown by these, while they are connected."""
