"""Branches of a run. The machine treats each branch as a run of its own, by the same rules.

A branch begins with the vars of the run. Its changes are its patch. The names of the runtime (`_runtime`,
`_limits`) are not patched, since all branches share them. The join merges the patches in the order of the
branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from actors._kernel.workflow.durable import durable_copy
from actors._kernel.workflow.effects import RunStatus, StepStatus, WaitReason, WaitState
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import GraphBranch, GraphFork, RunState, open_wait
from actors._kernel.workflow.step_record import StepRecord
from actors._workflow.machine.records import Transition, behind, failed, recorded, varied
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.machine.variables import (
    BRANCH,
    LIMITS,
    RECORDS,
    RUNTIME,
    SEQ,
    changes,
    namespace,
    seq_of,
    split_key,
)
from actors.errors import NotSerializableError

Path: TypeAlias = tuple[str, ...]
"""The path to a branch: the keys of forks, the outermost first. Empty: the run itself."""

_OF_RUN: Final = (SEQ, RECORDS, BRANCH)
_SHARED: Final = (RUNTIME, LIMITS)
_GONE: Final = object()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A cursor of a run: the run itself, or a branch that has not ended.

    Attributes:
        path: The path to it.
        wait: The wait of it. None: it can continue.
        joins: True if all its branches have ended and have to be joined.
    """

    path: Path
    wait: WaitState | None = None
    joins: bool = False


def leaves(state: RunState) -> Iterator[Leaf]:
    """Yield the cursors of a run that has not ended, in the order of its branches."""
    if state.status.is_terminal:
        return
    if state.fork is None:
        yield Leaf((), open_wait(state))
    else:
        yield from _leaves_of(state.fork, ())


def keys_beside(state: RunState, path: Path) -> frozenset[str]:
    """Return the keys of the waits of all other branches than the one at `path`."""
    found = (leaf.wait.wait_key for leaf in leaves(state) if leaf.wait and leaf.path != path)
    return frozenset(key for key in found if key is not None)


def _leaves_of(fork: GraphFork, path: Path) -> Iterator[Leaf]:
    still_open = [one for one in fork.branches if fork.is_open(one)]
    for branch in still_open:
        own = (*path, fork.key(branch))
        if branch.fork is None:
            yield Leaf(own, branch.wait)
        else:
            yield from _leaves_of(branch.fork, own)
    if not still_open:
        yield Leaf(path, joins=True)


def seen_at(state: RunState, path: Path) -> RunState | None:
    """Return a branch as a run of its own. None: the run has no such branch now."""
    for key in path:
        place = None if state.fork is None else state.fork.place(key)
        if state.fork is None or place is None:
            return None
        state = _seen(state, state.fork.branches[place], key)
    return state


def _seen(state: RunState, branch: GraphBranch, key: str) -> RunState:
    runtime = namespace(state.vars, RUNTIME)
    way = [*(runtime.get(BRANCH) or ()), key]
    variables = varied(state.vars, branch.patch)
    return state.moved(
        vars={**variables, RUNTIME: {**runtime, SEQ: branch.seq, BRANCH: way}},
        status=branch.status,
        current_node=branch.node,
        waiting=branch.wait,
        output=branch.output,
        error=branch.error,
        fork=branch.fork,
    )


def lifted(state: RunState, path: Path, decided: Transition) -> Transition:
    """Return a decision about a branch as a decision about its run."""
    if not path:
        return decided
    return replace(
        decided, state=put(state, path, decided.state), records=records_at(path, decided)
    )


def records_at(path: Path, decided: Transition) -> tuple[StepRecord, ...]:
    """Return the records of a decision about a branch as records of its run."""
    if not path:
        return decided.records
    return tuple(
        replace(one, delta={**(one.delta or {}), "branch": [*path]}) for one in decided.records
    )


def put(state: RunState, path: Path, seen: RunState) -> RunState:
    """Return the run in which a branch has the state `seen`; see `seen_at`."""
    if not path:
        return seen
    key, *rest = path
    assert state.fork is not None
    place = state.fork.place(key)
    assert place is not None
    branch = state.fork.branches[place]
    if rest:
        seen = put(_seen(state, branch, key), tuple(rest), seen)
    own = namespace(state.vars, RUNTIME)
    kept: dict[str, Any] = {name: own[name] for name in _OF_RUN if name in own}
    told = namespace(seen.vars, RUNTIME)
    shared = {name: value for name, value in told.items() if name not in _OF_RUN}
    variables = {**state.vars, RUNTIME: {**shared, **kept}}
    if LIMITS in seen.vars:
        variables[LIMITS] = seen.vars[LIMITS]
    after = replace(
        branch,
        node=seen.current_node,
        status=seen.status,
        seq=seq_of(seen.vars),
        patch=_patch(state.vars, seen.vars),
        wait=seen.waiting,
        output=seen.output,
        error=seen.error,
        fork=seen.fork,
    )
    fork = state.fork.with_branch(place, after)
    waiting = _wait_of(fork)
    status = RunStatus.RUNNING if waiting is None else RunStatus.WAITING
    return state.moved(
        vars=variables, status=status, waiting=waiting, fork=fork, updated_at=seen.updated_at
    )


def _patch(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    found = [one for one in changes(before, after) if one[0][0] not in _SHARED]
    sets = [[path, value] for path, value, there in found if there]
    unsets = [path for path, _, there in found if not there]
    return ({"set": sets} if sets else {}) | ({"unset": unsets} if unsets else {})


def _wait_of(fork: GraphFork) -> WaitState | None:
    """Return the wait of a run of which all branches wait or have ended. None: a branch can continue."""
    still_open = [one for one in fork.branches if fork.is_open(one)]
    if not still_open or any(one.status is RunStatus.RUNNING for one in still_open):
        return None
    instants = [one.until for one in fork.waits() if one.until]
    return WaitState(WaitReason.BRANCHES, until=min(instants) if instants else None)


def joined(spec: WorkflowSpec, state: RunState, *, at: str) -> Transition:
    """Decide on a run whose branches have all ended: it continues, or fails.

    It fails if a branch failed or was cancelled, if two branches changed a name that has no reducer, or if a
    reducer raises.
    """
    fork = state.fork
    assert fork is not None
    bad = [
        f"branch {one.name!r}: {one.error or one.status.value}"
        for one in fork.branches
        if one.status in {RunStatus.FAILED, RunStatus.CANCELLED}
    ]
    if bad:
        return failed(state, f"branches of node {state.current_node!r}: {'; '.join(bad)}", at=at)
    try:
        merged = _merged(spec, state, fork)
    except (GraphError, NotSerializableError) as exc:
        return failed(state, f"join {fork.join!r}: {exc}", at=at)
    told = {"joined": [one.name for one in fork.branches], "next_node": fork.join}
    delta = merged | {"seq": seq_of(state.vars), "node": fork.join, "joined": True}
    return behind(state, recorded(state, StepStatus.COMPLETED, at, result=told, delta=delta))


def _merged(spec: WorkflowSpec, state: RunState, fork: GraphFork) -> dict[str, Any]:
    reducers = {tuple(split_key(name)): name for name in spec.reducers}
    writers = _Writers()
    sets: list[list[Any]] = []
    unsets: list[list[str]] = []
    for branch in fork.branches:
        for path, value in _written(branch.patch):
            if not any(path[: len(key)] == key for key in reducers):
                writers.add(path, branch.name)
                if value is _GONE:
                    unsets.append([*path])
                else:
                    sets.append([[*path], value])
    for key, name in reducers.items():
        views = [
            varied(state.vars, one.patch)
            for one in fork.branches
            if any(path[: len(key)] == key for path, _ in _written(one.patch))
        ]
        if views:
            values = [_at(one, key) for one in views]
            sets.append([[*key], _reduced(spec, name, _at(state.vars, key), values)])
    return ({"set": sets} if sets else {}) | ({"unset": unsets} if unsets else {})


def _reduced(spec: WorkflowSpec, name: str, before: Any, values: list[Any]) -> Any:
    given = durable_copy([before, values], name)
    try:
        value = spec.reducers[name](*given)
    except Exception as exc:
        raise GraphError(f"reducer of {name!r}", f"{type(exc).__name__}: {exc}") from exc
    return durable_copy(value, f"reducer of {name!r}")


class _Writers:
    """The names changed so far, with the branch that changed each."""

    def __init__(self) -> None:
        self._of: dict[Path, str] = {}
        self._above: dict[Path, str] = {}

    def add(self, path: Path, branch: str) -> None:
        """Add a change.

        Raises:
            GraphError: Another branch changed this name, a name below it or a name above it.
        """
        around = [path[:length] for length in range(1, len(path))]
        others = [self._of.get(path), self._above.get(path), *(self._of.get(one) for one in around)]
        other = next((one for one in others if one not in {None, branch}), None)
        if other is not None:
            problem = (
                f"branches {other!r} and {branch!r} both changed it. Let only one change it, or give the graph "
                f"a reducer for it"
            )
            raise GraphError(f"vars path {'.'.join(path)!r}", problem)
        self._of[path] = branch
        self._above.update(dict.fromkeys(around, branch))


def _written(patch: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield paths and values of a patch, down to values that are not objects.

    `_GONE` is the value of removed names.
    """
    for path, value in patch.get("set") or ():
        yield from _down(tuple(path), value)
    for path in patch.get("unset") or ():
        yield tuple(path), _GONE


def _down(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, below in value.items():
        yield from _down((*path, name), below)


def _at(variables: dict[str, Any], path: Path) -> Any:
    found: Any = variables
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found
