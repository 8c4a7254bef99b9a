"""The checkpoint of a run: all that is needed to go on with it, in any process.

A branch says where it stands, and what it changed in the vars that all branches began with. A snapshot is a
named checkpoint, to look at and to begin new runs with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, Protocol, runtime_checkable

from actors._kernel.workflow.durable import WRAPPED, durable_copy, new_id, plain_copy, utc_now_iso
from actors._kernel.workflow.effects import RunStatus, WaitReason, WaitState


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBranch:
    """A branch.

    Attributes:
        name: Its name.
        node: The node that is next, or at which it waits or ended.
        status: Its status.
        seq: The number of its next step.
        patch: What it changed so far: ``set`` and ``unset`` of a delta.
        wait: Its wait, while `status` is WAITING.
        output: Output of a branch that ended before the join.
        error: Error of a branch that failed.
        fork: Its own branches.
    """

    name: str
    node: str
    status: RunStatus = RunStatus.RUNNING
    seq: int = 0
    patch: dict[str, Any] = field(default_factory=dict)
    wait: WaitState | None = None
    output: Any = None
    error: str | None = None
    fork: GraphFork | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the branch as stores keep it."""
        data = {
            "name": self.name,
            "node": self.node,
            "status": self.status.value,
            "seq": self.seq,
            "patch": self.patch,
            "wait": None if self.wait is None else self.wait.to_dict(),
            "output": self.output,
            "error": self.error,
            "fork": None if self.fork is None else self.fork.to_dict(),
        }
        return {name: value for name, value in data.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GraphBranch:
        """Return the branch that `to_dict` described."""
        wait, fork = data.get("wait"), data.get("fork")
        values = {
            **data,
            "status": RunStatus(data["status"]),
            "wait": None if wait is None else WaitState.from_dict(wait),
            "fork": None if fork is None else GraphFork.from_dict(fork),
        }
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFork:
    """A point at which a run has branches.

    Attributes:
        seq: The step that made them.
        join: The node at which they meet.
        branches: In the order in which they are merged.
    """

    seq: int
    join: str
    branches: tuple[GraphBranch, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fork as stores keep it."""
        branches = [branch.to_dict() for branch in self.branches]
        return {"seq": self.seq, "join": self.join, "branches": branches}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GraphFork:
        """Return the fork that `to_dict` described."""
        branches = tuple(GraphBranch.from_dict(row) for row in data["branches"])
        return cls(seq=data["seq"], join=data["join"], branches=branches)

    @property
    def has_open(self) -> bool:
        """True if a branch has not come to its end."""
        return any(self.is_open(branch) for branch in self.branches)

    def is_open(self, branch: GraphBranch) -> bool:
        """Return whether a branch of this fork has something left to do or to wait for."""
        has_arrived = branch.fork is None and branch.node == self.join
        return not branch.status.is_terminal and not (
            has_arrived and branch.status is RunStatus.RUNNING
        )

    def waits(self) -> Iterator[WaitState]:
        """Yield what the branches wait for, in their order."""
        for branch in self.branches:
            if branch.fork is not None:
                yield from branch.fork.waits()
            elif branch.wait is not None:
                yield branch.wait

    def key(self, branch: GraphBranch) -> str:
        """Return the name of a branch that no branch of another fork of its run has."""
        return f"{self.seq}.{branch.name}"

    def place(self, key: str) -> int | None:
        """Return the index of the branch of this key, or None if the branch is of another fork."""
        seq, _, name = key.partition(".")
        if seq != str(self.seq):
            return None
        return next(
            (index for index, branch in enumerate(self.branches) if branch.name == name), None
        )

    def with_branch(self, index: int, branch: GraphBranch) -> GraphFork:
        """Return the fork with another branch at a position."""
        return replace(self, branches=(*self.branches[:index], branch, *self.branches[index + 1 :]))


FIELDS = (
    "run_id",
    "workflow_id",
    "current_node",
    "output",
    "error",
    "created_at",
    "updated_at",
    "actor_id",
    "session_id",
    "parent_run_id",
)

LIFECYCLE: Final = "_run_lifecycle"
"""Name in the vars. Its value says why a run was started, and how long it is to be kept. Lists show it."""
_LIFECYCLE_TEXTS: Final = (
    *("source", "purpose", "visibility", "run_mode", "editor_session_id"),
    *("flow_id", "bundle_id", "bundle_version"),
)
_LONGEST_TEXT: Final = 240

_VALUES = attrgetter(*FIELDS)


@dataclass(slots=True)
class RunState:
    """A run of a graph. Code of nodes may change `vars` of the state that it gets; stores keep copies.

    Attributes:
        run_id: The run.
        workflow_id: Its graph.
        status: Its status.
        current_node: The node that is next, or at which it waits or ended.
        vars: Its variables, JSON data. Names that begin with an underscore belong to the runtime.
        waiting: Its wait, while `status` is WAITING.
        output: JSON data of a completed run.
        error: The message of a failed or cancelled one.
        created_at: ISO 8601 in UTC.
        updated_at: ISO 8601 in UTC.
        actor_id: Whom it acts for.
        session_id: The session that it belongs to.
        parent_run_id: The run that started it as a sub-graph.
        fork: Its branches, while it has some: it goes on at `current_node` when they have met.
        checked: Whether its values are known to be JSON data. Set on what no code of an author can reach.
    """

    run_id: str
    workflow_id: str
    status: RunStatus
    current_node: str
    vars: dict[str, Any] = field(default_factory=dict)
    waiting: WaitState | None = None
    output: Any = None
    error: str | None = None
    created_at: str = ""
    updated_at: str = ""
    actor_id: str | None = None
    session_id: str | None = None
    parent_run_id: str | None = None
    fork: GraphFork | None = None
    checked: bool = field(default=False, compare=False, repr=False)

    @classmethod
    def new(
        cls,
        *,
        workflow_id: str,
        entry_node: str,
        vars: dict[str, Any] | None = None,  # noqa: A002 - the name of the source
        actor_id: str | None = None,
        session_id: str | None = None,
        parent_run_id: str | None = None,
        run_id: str | None = None,
        at: str | None = None,
    ) -> RunState:
        """Return a run that has not begun; `run_id` and `at` are drawn if they are left out."""
        at = at or utc_now_iso()
        return cls(
            run_id=run_id or new_id(),
            workflow_id=workflow_id,
            status=RunStatus.RUNNING,
            current_node=entry_node,
            vars={} if vars is None else vars,
            created_at=at,
            updated_at=at,
            actor_id=actor_id,
            session_id=session_id,
            parent_run_id=parent_run_id,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the run as stores keep it: checked JSON data, a copy.

        Raises:
            NotSerializableError: The path of what is not JSON data.
        """
        data = self.told()
        if self.checked:
            data["output"], data["vars"] = plain_copy(self.output), plain_copy(self.vars)
        return data

    def told(self) -> dict[str, Any]:
        """Return what `to_dict` does, to be encoded at once: what is checked is not copied.

        Raises:
            NotSerializableError: The path of what is not JSON data.
        """
        data = dict(zip(FIELDS, _VALUES(self), strict=True))
        data["status"] = RunStatus(self.status).value
        data["vars"] = self.vars
        if not self.checked:
            data["output"] = durable_copy(self.output, "output")
            data["vars"] = durable_copy(self.vars, "vars")
        data["waiting"] = (
            None
            if self.waiting is None
            else durable_copy(self.waiting.to_dict(), "waiting", deepest=WRAPPED)
        )
        if self.fork is not None:
            data["fork"] = durable_copy(self.fork.to_dict(), "fork", deepest=WRAPPED)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunState:
        """Return the run that `to_dict` described. It shares what it holds with `data`."""
        wait, fork = data.get("waiting"), data.get("fork")
        fields: dict[str, Any] = {name: data.get(name) for name in FIELDS}
        return cls(
            status=RunStatus(data["status"]),
            vars=data["vars"],
            waiting=None if wait is None else WaitState.from_dict(wait),
            fork=None if fork is None else GraphFork.from_dict(fork),
            **fields,
        )

    def copied(self) -> RunState:
        """Return a copy that shares nothing with this one.

        Raises:
            NotSerializableError: See `to_dict`.
        """
        return RunState.from_dict(self.to_dict())

    def cloned(self) -> RunState:
        """Return what `copied` does, of a run that a driver made: its values are known to be JSON data."""
        return RunState(**(self.cloned_values() | {"vars": plain_copy(self.vars)}))

    def cloned_values(self) -> dict[str, Any]:
        """Return the values of `cloned` by their names, but the vars are those of this run."""
        wait = self.waiting
        return self._values() | {
            "output": plain_copy(self.output),
            "waiting": None if wait is None else WaitState.from_dict(plain_copy(wait.to_dict())),
            "checked": False,
        }

    def moved(self, **changes: Any) -> RunState:
        """Return this run with other values of these names, as `dataclasses.replace` does, but faster."""
        return RunState(**(self._values() | changes))

    def _values(self) -> dict[str, Any]:
        return dict(zip(_ALL, _ALL_OF(self), strict=True))


_ALL = tuple(f.name for f in fields(RunState))
_ALL_OF = attrgetter(*_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """A choice of runs. A filter that is None fits all runs.

    Attributes:
        status: Only runs with this status.
        wait_reason: Waiting for this kind, the run or a branch of it.
        workflow_id: Only runs of this graph.
        session_id: Only runs of this session.
        root_only: Started by no other run.
    """

    status: RunStatus | None = None
    wait_reason: WaitReason | None = None
    workflow_id: str | None = None
    session_id: str | None = None
    root_only: bool = False

    def chosen(self, runs: Iterable[RunState], limit: int) -> list[RunState]:
        """Return at most `limit` of `runs`, the last updated first."""
        matches = [run for run in runs if self.fits(run)]
        matches.sort(key=lambda run: run.updated_at, reverse=True)
        return matches[: max(limit, 0)]

    def fits(self, run: RunState) -> bool:
        """Return True if a run is one of the choice."""
        return (
            (self.status is None or run.status == self.status)
            and (
                self.wait_reason is None
                or self.wait_reason in {reason_of(run), *(wait.reason for wait in open_waits(run))}
            )
            and (self.workflow_id is None or run.workflow_id == self.workflow_id)
            and (self.session_id is None or run.session_id == self.session_id)
            and not (self.root_only and run.parent_run_id)
        )


def open_wait(run: RunState) -> WaitState | None:
    """Return the wait of a run, or None if the run does not wait now."""
    return run.waiting if run.status is RunStatus.WAITING else None


def open_waits(run: RunState) -> list[WaitState]:
    """Return what the run waits for now: of a run that has branches, what those wait for that do."""
    if run.fork is not None and not run.status.is_terminal:
        return [*run.fork.waits()]
    wait = open_wait(run)
    return [] if wait is None else [wait]


def event_keys(run: RunState) -> set[str]:
    """Return the keys of the events that the run, or a branch of it, waits for now."""
    return {
        wait.wait_key
        for wait in open_waits(run)
        if wait.reason is WaitReason.EVENT and wait.wait_key is not None
    }


def reason_of(run: RunState) -> WaitReason | None:
    """Return the kind of thing that the run waits for, or None if it does not wait."""
    wait = open_wait(run)
    return None if wait is None else wait.reason


def due_at(run: RunState) -> str | None:
    """Return the instant at which a waiting run continues by itself, or None if there is none."""
    wait = open_wait(run)
    return None if wait is None else wait.until


def due_runs(runs: Iterable[RunState], now_iso: str, limit: int) -> list[RunState]:
    """Return at most `limit` runs whose instant has come, the earliest first."""
    # "~" is greater than the text of every instant: a run without an instant is never due.
    matches = [run for run in runs if (due_at(run) or "~") <= now_iso]
    matches.sort(key=lambda run: due_at(run) or "")
    return matches[: max(limit, 0)]


def index_row(run: RunState) -> dict[str, Any]:
    """Return what lists show of a run: no vars, no output."""
    return {
        "run_id": run.run_id,
        "workflow_id": run.workflow_id,
        "status": RunStatus(run.status).value,
        "wait_reason": str(reason_of(run) or "") or None,
        "wait_until": due_at(run),
        "parent_run_id": run.parent_run_id,
        "actor_id": run.actor_id,
        "session_id": run.session_id,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "run_lifecycle": _lifecycle_of(run),
    }


def _lifecycle_of(run: RunState) -> dict[str, Any] | None:
    """Return the known values of `LIFECYCLE` that a run has, or None if it has none of them."""
    raw_lifecycle = run.vars.get(LIFECYCLE)
    if not isinstance(raw_lifecycle, dict):
        return None
    lifecycle: dict[str, Any] = _texts_of(raw_lifecycle, _LIFECYCLE_TEXTS)
    retention = raw_lifecycle.get("retention")
    if isinstance(retention, dict):
        texts = _texts_of(retention, ("mode", "expires_at"))
        if clean_retention := texts | _seconds_of(retention):
            lifecycle["retention"] = clean_retention
    return lifecycle or None


def _texts_of(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    texts = {name: values[name].strip() for name in names if isinstance(values.get(name), str)}
    return {name: text[:_LONGEST_TEXT] for name, text in texts.items() if text}


def _seconds_of(retention: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``ttl_s`` as a whole number, also if it is a text. Empty: it is none, or not positive."""
    value = retention.get("ttl_s")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return {}
    try:
        ttl_s = int(value)
    except (ValueError, OverflowError):  # the latter: infinity, which any caller may write
        return {}
    return {"ttl_s": ttl_s} if ttl_s > 0 else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A checkpoint with a name.

    Attributes:
        snapshot_id: Its id.
        run_id: The run.
        step_id: The last step before the snapshot, if it is known.
        name: A name for people.
        description: A text for people.
        tags: Words to search by.
        created_at: The instant, in ISO 8601 in UTC.
        run_state: The run, by `RunState.to_dict`.
        spec_hash: `WorkflowSpec.hash` of the graph, or None if it is not known.
    """

    snapshot_id: str
    run_id: str
    step_id: str | None = None
    name: str = ""
    description: str = ""
    tags: list[str] = field(default_factory=list)
    created_at: str = ""
    run_state: dict[str, Any] = field(default_factory=dict)
    spec_hash: str | None = None

    @classmethod
    def from_run(
        cls,
        *,
        run: RunState,
        name: str,
        description: str = "",
        tags: Iterable[str] = (),
        step_id: str | None = None,
        spec_hash: str | None = None,
    ) -> Snapshot:
        """Return a snapshot of the run as it is now.

        Raises:
            NotSerializableError: See `RunState.to_dict`.
        """
        return cls(
            snapshot_id=new_id(),
            run_id=run.run_id,
            step_id=step_id,
            name=name,
            description=description,
            tags=[*tags],
            created_at=utc_now_iso(),
            run_state=run.to_dict(),
            spec_hash=spec_hash,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as stores keep it."""
        return asdict(self)


@runtime_checkable
class SnapshotStore(Protocol):
    """Snapshots by id."""

    def save(self, snapshot: Snapshot) -> None:
        """Keep the snapshot. It replaces one of its id."""

    def load(self, snapshot_id: str) -> Snapshot | None:
        """Return the snapshot, or None if there is none of this id."""

    def delete(self, snapshot_id: str) -> bool:
        """Remove it; whether there was one."""

    def list(
        self,
        *,
        run_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 100,
    ) -> list[Snapshot]:
        """Return those that fit all that is given, the newest first. `query` is part of name or description."""


def chosen_snapshots(
    snapshots: Iterable[Snapshot],
    *,
    run_id: str | None,
    tag: str | None,
    query: str | None,
    limit: int,
) -> list[Snapshot]:
    """Return what `SnapshotStore.list` does, of these."""
    word = (query or "").casefold()
    matches = [
        snapshot
        for snapshot in snapshots
        if (run_id is None or snapshot.run_id == run_id)
        and (tag is None or tag in snapshot.tags)
        and word in f"{snapshot.name}\n{snapshot.description}".casefold()
    ]
    matches.sort(key=lambda snapshot: (snapshot.created_at, snapshot.snapshot_id), reverse=True)
    return matches[: max(limit, 0)]
