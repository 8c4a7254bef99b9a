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
from actors._workflow.machine.records import (
    Transition,
    apply_delta,
    failed,
    node_record,
    transition_of,
)
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
_REMOVED: Final = object()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A cursor of a run: the run itself, or a branch that has not ended.

    Attributes:
        path: The path to it.
        wait: The wait of it, or None if it can continue.
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
    keys = (leaf.wait.wait_key for leaf in leaves(state) if leaf.wait and leaf.path != path)
    return frozenset(key for key in keys if key is not None)


def _leaves_of(fork: GraphFork, path: Path) -> Iterator[Leaf]:
    open_branches = [b for b in fork.branches if fork.is_open(b)]
    for branch in open_branches:
        branch_path = (*path, fork.key(branch))
        if branch.fork is None:
            yield Leaf(branch_path, branch.wait)
        else:
            yield from _leaves_of(branch.fork, branch_path)
    if not open_branches:
        yield Leaf(path, joins=True)


def find_branch_state(state: RunState, path: Path) -> RunState | None:
    """Return a branch as a run of its own, or None if the run has no such branch now."""
    for key in path:
        index = None if state.fork is None else state.fork.place(key)
        if state.fork is None or index is None:
            return None
        state = _state_of_branch(state, state.fork.branches[index], key)
    return state


def _state_of_branch(state: RunState, branch: GraphBranch, key: str) -> RunState:
    runtime = namespace(state.vars, RUNTIME)
    branch_path = [*(runtime.get(BRANCH) or ()), key]
    variables = apply_delta(state.vars, branch.patch)
    return state.moved(
        vars={**variables, RUNTIME: {**runtime, SEQ: branch.seq, BRANCH: branch_path}},
        status=branch.status,
        current_node=branch.node,
        waiting=branch.wait,
        output=branch.output,
        error=branch.error,
        fork=branch.fork,
    )


def lift_to_run(state: RunState, path: Path, transition: Transition) -> Transition:
    """Return a decision about a branch as a decision about its run."""
    if not path:
        return transition
    return replace(
        transition,
        state=with_branch(state, path, transition.state),
        records=records_of_branch(path, transition),
    )


def records_of_branch(path: Path, transition: Transition) -> tuple[StepRecord, ...]:
    """Return the records of a decision about a branch as records of its run."""
    if not path:
        return transition.records
    return tuple(
        replace(record, delta={**(record.delta or {}), "branch": [*path]})
        for record in transition.records
    )


def with_branch(state: RunState, path: Path, branch_state: RunState) -> RunState:
    """Return the run in which a branch has the state `branch_state`; see `find_branch_state`."""
    if not path:
        return branch_state
    key, *rest = path
    assert state.fork is not None
    index = state.fork.place(key)
    assert index is not None
    branch = state.fork.branches[index]
    if rest:
        branch_state = with_branch(_state_of_branch(state, branch, key), tuple(rest), branch_state)
    runtime = namespace(state.vars, RUNTIME)
    # Steps and records are counted for each branch. All else in `_runtime` is shared by the branches, so the
    # value that this branch has is that of the run from now on.
    run_values: dict[str, Any] = {name: runtime[name] for name in _OF_RUN if name in runtime}
    branch_runtime = namespace(branch_state.vars, RUNTIME)
    shared_values = {name: value for name, value in branch_runtime.items() if name not in _OF_RUN}
    variables = {**state.vars, RUNTIME: {**shared_values, **run_values}}
    if LIMITS in branch_state.vars:
        variables[LIMITS] = branch_state.vars[LIMITS]
    new_branch = replace(
        branch,
        node=branch_state.current_node,
        status=branch_state.status,
        seq=seq_of(branch_state.vars),
        patch=_patch(state.vars, branch_state.vars),
        wait=branch_state.waiting,
        output=branch_state.output,
        error=branch_state.error,
        fork=branch_state.fork,
    )
    fork = state.fork.with_branch(index, new_branch)
    wait = _wait_of(fork)
    status = RunStatus.RUNNING if wait is None else RunStatus.WAITING
    return state.moved(
        vars=variables, status=status, waiting=wait, fork=fork, updated_at=branch_state.updated_at
    )


def _patch(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    differences = [
        difference for difference in changes(before, after) if difference[0][0] not in _SHARED
    ]
    sets = [[path, value] for path, value, is_present in differences if is_present]
    unsets = [path for path, _, is_present in differences if not is_present]
    return ({"set": sets} if sets else {}) | ({"unset": unsets} if unsets else {})


def _wait_of(fork: GraphFork) -> WaitState | None:
    """Return the wait of a run whose branches all wait or have ended, or None if a branch can continue."""
    open_branches = [branch for branch in fork.branches if fork.is_open(branch)]
    if not open_branches or any(b.status is RunStatus.RUNNING for b in open_branches):
        return None
    instants = [wait.until for wait in fork.waits() if wait.until]
    return WaitState(WaitReason.BRANCHES, until=min(instants) if instants else None)


def join_branches(spec: WorkflowSpec, state: RunState, *, at: str) -> Transition:
    """Decide on a run whose branches have all ended: it continues, or fails.

    It fails if a branch failed or was cancelled, if two branches changed a name that has no reducer, or if a
    reducer raises.
    """
    fork = state.fork
    assert fork is not None
    failures = [
        f"branch {branch.name!r}: {branch.error or branch.status.value}"
        for branch in fork.branches
        if branch.status in {RunStatus.FAILED, RunStatus.CANCELLED}
    ]
    if failures:
        return failed(
            state, f"branches of node {state.current_node!r}: {'; '.join(failures)}", at=at
        )
    try:
        merged_delta = _merge(spec, state, fork)
    except (GraphError, NotSerializableError) as exc:
        return failed(state, f"join {fork.join!r}: {exc}", at=at)
    result = {"joined": [branch.name for branch in fork.branches], "next_node": fork.join}
    delta = merged_delta | {"seq": seq_of(state.vars), "node": fork.join, "joined": True}
    return transition_of(
        state, node_record(state, StepStatus.COMPLETED, at, result=result, delta=delta)
    )


def _merge(spec: WorkflowSpec, state: RunState, fork: GraphFork) -> dict[str, Any]:
    reducers_by_path = {tuple(split_key(name)): name for name in spec.reducers}
    writers = _Writers()
    sets: list[list[Any]] = []
    unsets: list[list[str]] = []
    for branch in fork.branches:
        for path, value in _patch_values(branch.patch):
            if not any(path[: len(key)] == key for key in reducers_by_path):
                writers.add(path, branch.name)
                if value is _REMOVED:
                    unsets.append([*path])
                else:
                    sets.append([[*path], value])
    for key, name in reducers_by_path.items():
        views = [
            apply_delta(state.vars, b.patch)
            for b in fork.branches
            if any(path[: len(key)] == key for path, _ in _patch_values(b.patch))
        ]
        if views:
            values = [_at(view, key) for view in views]
            sets.append([[*key], _reduce(spec, name, _at(state.vars, key), values)])
    return ({"set": sets} if sets else {}) | ({"unset": unsets} if unsets else {})


def _reduce(spec: WorkflowSpec, name: str, before: Any, values: list[Any]) -> Any:
    # A copy, since an author's function may change its arguments, and the state shares these values.
    arguments = durable_copy([before, values], name)
    try:
        value = spec.reducers[name](*arguments)
    # An author's function may raise anything. Its run fails, and the driver continues with other runs.
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
        prefixes = [path[:length] for length in range(1, len(path))]
        writers = [self._of.get(path), self._above.get(path), *(self._of.get(p) for p in prefixes)]
        other = next((writer for writer in writers if writer not in {None, branch}), None)
        if other is not None:
            problem = (
                f"branches {other!r} and {branch!r} both changed it. Let only one change it, or give the graph "
                f"a reducer for it"
            )
            raise GraphError(f"vars path {'.'.join(path)!r}", problem)
        self._of[path] = branch
        self._above.update(dict.fromkeys(prefixes, branch))


def _patch_values(patch: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield paths and values of a patch, down to values that are not objects.

    `_REMOVED` is the value of removed names.
    """
    for path, value in patch.get("set") or ():
        yield from _down(tuple(path), value)
    for path in patch.get("unset") or ():
        yield tuple(path), _REMOVED


def _down(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, item in value.items():
        yield from _down((*path, name), item)


def _at(variables: dict[str, Any], path: Path) -> Any:
    value: Any = variables
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
