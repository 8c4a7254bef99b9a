"""Refusals of workflows, with the way out."""

from __future__ import annotations

from typing import ClassVar

from actors.errors import (
    ConflictError,
    ContractError,
    Facts,
    NonDeterminismError,
    PersistenceError,
    TerminalError,
)


class RunIdentityConflict(Facts, ContractError, ValueError):  # noqa: N818 - the name of the source
    """A run of this id belongs to another workflow, session or parent."""

    text = "run {run_id} is another one: {problem}. Choose another run id, or leave it out"
    run_id: str
    problem: str


class GraphError(Facts, ContractError, ValueError):
    """A graph, a plan or a name that no run can follow."""

    text = "{what}: {problem}"
    what: str
    problem: str


class StaleResumeError(GraphError, ConflictError):
    """The wait that was to be answered is not there, or not any more. The run is as it was."""

    # Logs have these facts of the error, not those of GraphError.
    _fields: ClassVar[tuple[str, ...]] = ("run_id", "problem")
    what = "answer"
    text = "{problem} (run {run_id}). Read the run's state, and answer the wait that it has now"
    run_id: str

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, problem)


class SpecChangedError(Facts, ContractError):
    """A snapshot was made with another graph."""

    text = (
        "snapshot {snapshot_id} was made with graph {saved}, and this one is {given}. Restore it with "
        "the graph it was made with, or with force if its nodes still fit"
    )
    snapshot_id: str
    saved: str
    given: str


class LedgerBrokenError(Facts, PersistenceError):
    """A ledger or a run that was read is not what was written."""

    text = "{place}: {problem}. Restore it from a copy, or delete the run"
    place: str
    problem: str


class StoreBusyError(Facts, PersistenceError):
    """Another writer held the store for too long. Nothing was written."""

    text = "{place}: another writer held it for {waited_s} s. Try again"
    place: str
    waited_s: float


class NoSuchRunError(Facts, ContractError, KeyError):
    """The store has no run of this id."""

    text = "no run {run_id!r} in this store: list the known ones with list_runs"
    run_id: str


class NoSuchSnapshotError(Facts, ContractError, KeyError):
    """No snapshot of this id is kept."""

    text = "no snapshot {snapshot_id!r} is kept: list them with FlowRuns.snapshots"
    snapshot_id: str


class NodeMissingError(NonDeterminismError):
    """A run is at a node that this host's graph does not have: the run is parked, as it was."""

    text = (
        "the run is at node {expected}, which {found} does not have on this host: serve a graph that has "
        "it, then resolve the run with --retry"
    )
    parked_as = "version"


class FlowMissingError(NonDeterminismError):
    """A run is of an installed flow that this host cannot execute now: the run is parked, as it was."""

    text = (
        "flow {expected}: {found}. Install it, or serve it with what it needs, then resolve the run with "
        "--retry"
    )
    parked_as = "version"


class GraphRunFailedError(Facts, TerminalError):
    """A run of a graph failed: a node did, an effect at its last attempt, or a branch."""

    text = "flow {flow}: {problem}"
    flow: str
    problem: str
