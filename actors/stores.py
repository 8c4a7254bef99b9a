"""Stores: the contracts of what holds runs and agents' data, their values, and stores in memory.

A store of runs is a `RunStore`, which has a role for each kind of caller, and `DataStores`. Content that agents
keep has contracts of its own, each bound to one tenant and scope. Classes with InMemory in their name lose
all content with the process; `persistence` has the durable ones.
"""

from actors._inmemory.artifacts import (
    ComposedBlobStore,
    InMemoryArtifacts,
    InMemoryArtifactStore,
    InMemoryFileStore,
)
from actors._inmemory.boards import GlobalTaskStore, InMemoryTaskBoards, InMemoryTaskStore
from actors._inmemory.knowledge import InMemoryGraphStore, InMemoryVectorStore
from actors._inmemory.memories import InMemoryLongTermMemories, InMemoryLongTermMemory
from actors._inmemory.sessions import current_agent_label, current_thread_id
from actors._kernel.stores.administration import (
    ApiToken,
    AuditRow,
    AuditStore,
    Erasable,
    EraseReport,
    EraseRequest,
    ErasureStore,
    NewToken,
    TokenStore,
    UsageFilter,
    UsageStore,
    UsageTotal,
)
from actors._kernel.stores.artifacts import (
    ArtifactBytes,
    ArtifactPin,
    ArtifactRef,
    ArtifactStore,
    ArtifactStores,
    BlobStore,
    FileStore,
)
from actors._kernel.stores.conversations import (
    HistoryProvider,
    SessionDirectory,
    SessionFilter,
    SessionLabel,
    SessionPlace,
    SessionRow,
    SessionStore,
    TranscriptStore,
)
from actors._kernel.stores.data import (
    CypherCapable,
    EmbeddingClient,
    Entity,
    GraphStore,
    QueryEmbeddingClient,
    Relationship,
    SearchResult,
    SubGraph,
    Task,
    TaskList,
    TaskStatus,
    TaskStore,
    TaskStores,
    VectorDocument,
    VectorStore,
)
from actors._kernel.stores.errors import CypherError, InvalidDocumentError, SubGraphTooLargeError
from actors._kernel.stores.flows import FlowBundleStore, RunSnapshotStore
from actors._kernel.stores.insight import InsightStore
from actors._kernel.stores.limits import Limit, LimitStore, LimitUse
from actors._kernel.stores.memory import (
    LongTermMemories,
    LongTermMemory,
    Memory,
    MemoryConflictError,
    MemoryQuery,
    NewMemory,
)
from actors._kernel.stores.run_store import DataStores, RunStore
from actors._kernel.stores.runs import (
    ApprovalFilter,
    ArrivalStore,
    CommitStore,
    ListStore,
    OperatorStore,
    ReadStore,
    RetentionStore,
    RunFilter,
)
from actors._kernel.stores.schedule import Schedule, ScheduleStore
from actors._kernel.stores.shards import BacklogStore, Serves, ShardStore
from actors._kernel.stores.topics import FanoutStrategy, FollowGraph, PostStore

__all__ = [
    "ApiToken",
    "ApprovalFilter",
    "ArrivalStore",
    "ArtifactBytes",
    "ArtifactPin",
    "ArtifactRef",
    "ArtifactStore",
    "ArtifactStores",
    "AuditRow",
    "AuditStore",
    "BacklogStore",
    "BlobStore",
    "CommitStore",
    "ComposedBlobStore",
    "CypherCapable",
    "CypherError",
    "DataStores",
    "EmbeddingClient",
    "Entity",
    "Erasable",
    "EraseReport",
    "EraseRequest",
    "ErasureStore",
    "FanoutStrategy",
    "FileStore",
    "FlowBundleStore",
    "FollowGraph",
    "GlobalTaskStore",
    "GraphStore",
    "HistoryProvider",
    "InMemoryArtifactStore",
    "InMemoryArtifacts",
    "InMemoryFileStore",
    "InMemoryGraphStore",
    "InMemoryLongTermMemories",
    "InMemoryLongTermMemory",
    "InMemoryTaskBoards",
    "InMemoryTaskStore",
    "InMemoryVectorStore",
    "InsightStore",
    "InvalidDocumentError",
    "Limit",
    "LimitStore",
    "LimitUse",
    "ListStore",
    "LongTermMemories",
    "LongTermMemory",
    "Memory",
    "MemoryConflictError",
    "MemoryQuery",
    "NewMemory",
    "NewToken",
    "OperatorStore",
    "PostStore",
    "QueryEmbeddingClient",
    "ReadStore",
    "Relationship",
    "RetentionStore",
    "RunFilter",
    "RunSnapshotStore",
    "RunStore",
    "Schedule",
    "ScheduleStore",
    "SearchResult",
    "Serves",
    "SessionDirectory",
    "SessionFilter",
    "SessionLabel",
    "SessionPlace",
    "SessionRow",
    "SessionStore",
    "ShardStore",
    "SubGraph",
    "SubGraphTooLargeError",
    "Task",
    "TaskList",
    "TaskStatus",
    "TaskStore",
    "TaskStores",
    "TokenStore",
    "TranscriptStore",
    "UsageFilter",
    "UsageStore",
    "UsageTotal",
    "VectorDocument",
    "VectorStore",
    "current_agent_label",
    "current_thread_id",
]
