"""The checkpoint of a run: all that is needed to go on with it, in any process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

from actors.kernel.workflow.branches import GraphFork
from actors.kernel.workflow.drawn import new_id, utc_now_iso
from actors.kernel.workflow.durable import WRAPPED, durable_copy, plain_copy
from actors.kernel.workflow.effects import RunStatus, WaitReason, WaitState

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
        told = self.told()
        if self.checked:
            told["output"], told["vars"] = plain_copy(self.output), plain_copy(self.vars)
        return told

    def told(self) -> dict[str, Any]:
        """Return what `to_dict` does, to be encoded at once: what is checked is not copied.

        Raises:
            NotSerializableError: The path of what is not JSON data.
        """
        told = dict(zip(FIELDS, _VALUES(self), strict=True))
        told["status"] = RunStatus(self.status).value
        told["vars"] = self.vars
        if not self.checked:
            told["output"] = durable_copy(self.output, "output")
            told["vars"] = durable_copy(self.vars, "vars")
        told["waiting"] = (
            None
            if self.waiting is None
            else durable_copy(self.waiting.to_dict(), "waiting", deepest=WRAPPED)
        )
        if self.fork is not None:
            told["fork"] = durable_copy(self.fork.to_dict(), "fork", deepest=WRAPPED)
        return told

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

    def moved(self, **changed: Any) -> RunState:
        """Return this run with other values of these names, as `dataclasses.replace` does, but faster."""
        return RunState(**(self._values() | changed))

    def _values(self) -> dict[str, Any]:
        return dict(zip(_ALL, _ALL_OF(self), strict=True))


_ALL = tuple(one.name for one in fields(RunState))
_ALL_OF = attrgetter(*_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """A choice of runs. None: any.

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
        found = [run for run in runs if self.fits(run)]
        found.sort(key=lambda run: run.updated_at, reverse=True)
        return found[: max(limit, 0)]

    def fits(self, run: RunState) -> bool:
        """Return True if a run is one of the choice."""
        return (
            (self.status is None or run.status == self.status)
            and (self.wait_reason is None or self.wait_reason in _reasons(run))
            and (self.workflow_id is None or run.workflow_id == self.workflow_id)
            and (self.session_id is None or run.session_id == self.session_id)
            and not (self.root_only and run.parent_run_id)
        )


def open_wait(run: RunState) -> WaitState | None:
    """Return what the run waits for now; None: it does not wait."""
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
        one.wait_key
        for one in open_waits(run)
        if one.reason is WaitReason.EVENT and one.wait_key is not None
    }


def _reasons(run: RunState) -> set[WaitReason | None]:
    return {reason_of(run), *(one.reason for one in open_waits(run))}


def reason_of(run: RunState) -> WaitReason | None:
    """Return the kind of thing that the run waits for; None: it waits for nothing."""
    wait = open_wait(run)
    return None if wait is None else wait.reason


def due_at(run: RunState) -> str | None:
    """Return the instant at which a waiting run goes on by itself; None: there is none."""
    wait = open_wait(run)
    return None if wait is None else wait.until


def due_runs(runs: Iterable[RunState], now_iso: str, limit: int) -> list[RunState]:
    """Return at most `limit` runs whose instant has come, the earliest first."""
    found = [run for run in runs if (due_at(run) or "~") <= now_iso]
    found.sort(key=lambda run: due_at(run) or "")
    return found[: max(limit, 0)]


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
    """Return the known values of `LIFECYCLE` that a run has. None: it has none of them."""
    told = run.vars.get(LIFECYCLE)
    if not isinstance(told, dict):
        return None
    lifecycle: dict[str, Any] = _texts_of(told, _LIFECYCLE_TEXTS)
    retention = told.get("retention")
    if isinstance(retention, dict):
        texts = _texts_of(retention, ("mode", "expires_at"))
        if kept := texts | _seconds_of(retention):
            lifecycle["retention"] = kept
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
    except (ValueError, OverflowError):
        return {}
    return {"ttl_s": ttl_s} if ttl_s > 0 else {}
