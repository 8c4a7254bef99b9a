"""The stores under test, of one kind."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from actors._kernel.workflow.stores import Fault, no_fault
from actors.workflow import (
    Effect,
    EffectType,
    InMemoryArtifactStore,
    InMemoryCommandCursorStore,
    InMemoryCommandStore,
    InMemoryLedgerStore,
    InMemoryRunStore,
    InMemorySnapshotStore,
    StepPlan,
    WorkflowRegistry,
    WorkflowRuntime,
    WorkflowSpec,
)
from persistence import files, sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from actors.workflow import RunState

KINDS = ("memory", "files", "sqlite")


class GraphClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.instant = datetime(2030, 1, 1, tzinfo=UTC)
        self.slept: list[float] = []

    def now(self) -> datetime:
        """See `Clock.now`."""
        return self.instant

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self.instant.timestamp()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.instant += timedelta(seconds=seconds)

    def sleep(self, seconds: float) -> None:
        """Advance the clock, and count the sleep."""
        self.slept.append(seconds)
        self.advance(seconds)

    def iso(self, seconds: float = 0) -> str:
        """Return the instant this many seconds from now."""
        return (self.instant + timedelta(seconds=seconds)).isoformat()


class RunningClock(GraphClock):
    """A clock that is a microsecond later each time it is read."""

    @override
    def now(self) -> datetime:
        """See `Clock.now`."""
        self.advance(1e-6)
        return self.instant


@dataclass
class Stores:
    """All stores of one kind over one folder; `reopen` returns them as another process opens them."""

    kind: str
    folder: Path
    fault: Fault = no_fault
    clock: GraphClock = field(default_factory=GraphClock)
    database: Any = None

    def __post_init__(self) -> None:
        if self.kind == "memory":
            self.runs: Any = InMemoryRunStore()
            self.ledger: Any = InMemoryLedgerStore()
            self.commands: Any = InMemoryCommandStore()
            self.cursor: Any = InMemoryCommandCursorStore()
            self.snapshots: Any = InMemorySnapshotStore()
            self.artifacts: Any = InMemoryArtifactStore()
            return
        if self.kind == "files":
            self.artifacts = files.FileArtifactStore(self.folder, fault=self.fault)
            self.runs = files.JsonFileRunStore(self.folder, fault=self.fault, busy_s=5)
            self.ledger = files.JsonlLedgerStore(self.folder, fault=self.fault)
            self.commands = files.JsonlCommandStore(self.folder)
            self.cursor = files.JsonFileCommandCursorStore(self.folder / "cursor.json")
            self.snapshots = files.JsonSnapshotStore(self.folder)
            return
        self.database = sqlite.SqliteDatabase(self.folder / "graphs.db", fault=self.fault, busy_s=5)
        self.runs = sqlite.SqliteRunStore(self.database)
        self.ledger = sqlite.SqliteLedgerStore(self.database)
        self.commands = sqlite.SqliteCommandStore(self.database)
        self.cursor = sqlite.SqliteCommandCursorStore(self.database)
        self.snapshots = sqlite.SqliteSnapshotStore(self.database)
        self.artifacts = sqlite.SqliteArtifactStore(self.database)

    def reopen(self, fault: Fault = no_fault) -> Stores:
        """Return the stores as another process would open them; in memory, these."""
        if self.kind == "memory":
            return self
        return Stores(self.kind, self.folder, fault, self.clock)

    def close(self) -> None:
        """Close the files."""
        if self.database is not None:
            self.database.close()

    def runtime(self, *specs: WorkflowSpec, **more: Any) -> WorkflowRuntime:
        """Return a runtime with these graphs."""
        registry = WorkflowRegistry()
        for spec in specs:
            registry.register(spec)
        settings: dict[str, Any] = {
            "run_store": self.runs,
            "ledger_store": self.ledger,
            "artifact_store": self.artifacts,
            "workflow_registry": registry,
            "clock": self.clock,
            "sleep": self.clock.sleep,
        }
        return WorkflowRuntime(**settings | more)


def at_once(calls: Iterable[Callable[[], object]]) -> None:
    """Make each call in a thread of its own; return when all have ended."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def effect_then(
    kind: EffectType, payload: dict[str, Any], *, key: str = "out", after: str | None = "end"
) -> Callable[[RunState, Any], StepPlan]:
    """Return a node that requests an effect, then continues at `after`."""
    return lambda run, _ctx: StepPlan(
        run.current_node, Effect(kind, dict(payload), key), next_node=after
    )


def end_node(run: RunState, _ctx: Any) -> StepPlan:
    """Return the end node, with the public vars as output."""
    public = {name: value for name, value in run.vars.items() if not name.startswith("_")}
    return StepPlan(run.current_node, complete_output=public)


def one_effect(
    kind: EffectType, payload: dict[str, Any], *, name: str = "graph", key: str = "out"
) -> WorkflowSpec:
    """Return a graph of one effect and its end."""
    return WorkflowSpec(
        name, "work", {"work": effect_then(kind, payload, key=key), "end": end_node}
    )
