"""The state of a new run, and checks of a run's graph, nodes and identity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.effects import StepStatus
from actors._kernel.workflow.errors import GraphError, RunIdentityConflict, SpecChangedError
from actors._kernel.workflow.run_state import RunState, Snapshot
from actors._kernel.workflow.step_record import StepRecord
from actors._workflow.machine.branches import find_branch_state, leaves
from actors._workflow.machine.records import OpenStep
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.machine.variables import (
    DEPTH,
    LIMITS,
    RECORDS,
    RUNTIME,
    RuntimeConfig,
    ensure_namespaces,
    initial_vars,
    namespace,
    place_of,
    with_path,
    without_answers,
)

DEEPEST: Final = 32
_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


def new_run(
    workflow: WorkflowSpec,
    variables: dict[str, Any],
    config: RuntimeConfig,
    *,
    run_id: str | None,
    at: str,
    with_memory: bool = False,
    **whose: str | None,
) -> RunState:
    """Return a run whose entry node has not been called yet. `whose` are its other fields.

    Each run of either driver begins here, so here the vars lose what is the runtime's; see `initial_vars`.

    Raises:
        GraphError: `run_id` is not made of 1 to 200 letters, digits, ``_`` and ``-``, or a namespace in
            `variables` is not an object.
        NotSerializableError: A value is not JSON data; the error has its path.
    """
    if run_id is not None and not _RUN_ID.fullmatch(run_id):
        raise GraphError(f"run_id {run_id!r}", "use letters, digits, '_' and '-', 200 at most")
    run = RunState.new(
        workflow_id=workflow.workflow_id,
        entry_node=workflow.entry_node,
        vars=initial_vars(variables, with_memory=with_memory),
        run_id=run_id,
        at=at,
        **whose,
    ).copied()
    run_vars = ensure_namespaces(run.vars)
    run_vars[LIMITS] = config.to_limits_dict() | namespace(run_vars, LIMITS)
    return run


def start_record(run: RunState, *, restored_from: str | None = None) -> StepRecord:
    """Return the first record of a ledger, with the state that the run begins with."""
    run_data = run.to_dict()
    origin = {} if restored_from is None else {"restored_from": restored_from}
    return StepRecord(
        run_id=run.run_id,
        step_id=derive_id(run.run_id, "start"),
        node_id=run.current_node,
        status=StepStatus.COMPLETED,
        result={"begun": True, **origin},
        started_at=run.created_at,
        ended_at=run.created_at,
        actor_id=run.actor_id,
        session_id=run.session_id,
        delta={"start": run_data},
    )


def restored_run(
    snapshot: Snapshot, workflow: WorkflowSpec, *, run_id: str, at: str, force: bool
) -> RunState:
    """Return a new run that begins with the state of a snapshot and its open wait.

    Raises:
        SpecChangedError: The graph is not the snapshot's graph, and `force` is false.
        GraphError: The run had ended, the graph does not have the run's next node, or the snapshot has no valid
            run.
    """
    what = f"snapshot {snapshot.snapshot_id}"
    if snapshot.spec_hash is not None and snapshot.spec_hash != workflow.hash and not force:
        raise SpecChangedError(snapshot.snapshot_id, snapshot.spec_hash, workflow.hash)
    try:
        saved_state = RunState.from_dict(snapshot.run_state).copied()
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise GraphError(what, f"it holds no run: {type(exc).__name__}: {exc}") from exc
    if saved_state.status.is_terminal:
        problem = f"its run was {saved_state.status.value}: there is nothing to go on with"
        raise GraphError(what, problem)
    check_nodes(what, workflow, saved_state)
    return replace(
        saved_state,
        run_id=run_id,
        workflow_id=workflow.workflow_id,
        # The new run has a ledger of its own, of which its state includes no record.
        vars=with_path(without_answers(saved_state.vars), [RUNTIME, RECORDS], 0),
        parent_run_id=None,
        created_at=at,
        updated_at=at,
    )


def check_graph(workflow: WorkflowSpec, run: RunState) -> None:
    """Check that a run is a run of this graph.

    Raises:
        GraphError: The run has another graph.
    """
    if workflow.workflow_id != run.workflow_id:
        problem = f"it is a run of graph {run.workflow_id!r}, not of {workflow.workflow_id!r}"
        raise GraphError(f"run {run.run_id}", problem)


def check_nodes(what: str, workflow: WorkflowSpec, run: RunState) -> None:
    """Check that a graph has the next nodes of a state. `what` names the state in errors.

    Raises:
        GraphError: The graph does not have the next node of the run or of a branch.
    """
    cursors = [find_branch_state(run, leaf.path) for leaf in leaves(run)] or [run]
    for cursor in filter(None, cursors):
        node = cursor.waiting.resume_to_node if cursor.waiting else cursor.current_node
        if node is not None and node not in workflow.nodes:
            raise GraphError(what, f"graph {workflow.workflow_id!r} has no node {node!r}")


def check_identity(existing_run: RunState, requested_run: RunState) -> None:
    """Check that a run with the wanted id is the wanted run.

    Raises:
        RunIdentityConflict: The run has another graph, session or parent.
    """
    for name in ("workflow_id", "session_id", "parent_run_id"):
        if getattr(existing_run, name) != getattr(requested_run, name):
            problem = f"its {name} is {getattr(existing_run, name)!r}, not {getattr(requested_run, name)!r}"
            raise RunIdentityConflict(requested_run.run_id, problem)


def child_id(run: RunState, open_step: OpenStep) -> str:
    """Return the id of the sub-graph that an effect starts, for a payload without `run_id`."""
    return derive_id(place_of(run.run_id, run.vars), open_step.seq, "child")


def child_vars(run: RunState, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vars that a sub-graph of a run begins with.

    Raises:
        GraphError: Sub-graphs would be nested more than 32 levels, or the vars are not an object.
    """
    depth = int(namespace(run.vars, RUNTIME).get(DEPTH) or 0) + 1
    if depth > DEEPEST:
        name = payload.get("workflow_id")
        problem = f"{DEEPEST} sub-graphs within each other: {name!r} would be one more"
        raise GraphError("start_subworkflow", problem)
    inputs = payload.get("vars") or {}
    if not isinstance(inputs, dict):
        problem = f"payload.vars is a {type(inputs).__name__}. Give an object"
        raise GraphError("start_subworkflow", problem)
    variables = initial_vars(inputs)
    variables[RUNTIME] = {**namespace(variables, RUNTIME), DEPTH: depth}
    return variables
