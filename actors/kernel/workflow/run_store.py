"""Stores of runs: what a driver of graphs needs of a store of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from actors.kernel.workflow.effects import RunStatus, WaitReason
from actors.kernel.workflow.run_state import RunState

Fault: TypeAlias = Callable[[str], None]
"""A hook of tests: called with the name of each point at which a process may die."""


def no_fault(point: str) -> None:
    """Return. The default: no fault is injected."""


@runtime_checkable
class RunStore(Protocol):
    """Checkpoints by run id. What it returns and what it takes are copies."""

    def save(self, run: RunState) -> None:
        """Keep the run. It replaces an earlier checkpoint; whole or not at all.

        Raises:
            NotSerializableError: The path of what is not JSON data. Nothing is kept.
        """

    def load(self, run_id: str) -> RunState | None:
        """Return the last checkpoint; None: there is no such run."""


@runtime_checkable
class CreatingRunStore(RunStore, Protocol):
    """A store that can make a run only if there is none."""

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """Return the run of this id, and whether this call made it. Of many at once one does."""


@runtime_checkable
class DeletableRunStore(Protocol):
    """A store from which runs can be removed."""

    def delete(self, run_id: str) -> bool:
        """Remove the run; whether there was one."""


@runtime_checkable
class LockingRunStore(Protocol):
    """A store that many processes share."""

    def lock(self, run_id: str, *, wait: bool = True) -> AbstractContextManager[None]:
        """Hold the run against drivers in other processes. The end of a process lets it go.

        If not `wait`, a run that another one holds is an error at once.

        Raises:
            StoreBusyError: Another one holds it for too long.
        """


@runtime_checkable
class GroupingRunStore(Protocol):
    """A store that can write with its neighbours, for example with a ledger in the same file."""

    def grouped(self) -> AbstractContextManager[object]:
        """Join the writes of this thread in the block into one: after the block all are durable, or none."""


@runtime_checkable
class TrailingRunStore(RunStore, Protocol):
    """A store whose writes are dear, so the driver of a run writes some checkpoints later."""

    def save_later(self, run: RunState) -> None:
        """Show a run in this process as it is now. It is written by a later `save`, or not at all.

        The caller holds the run by `lock`. The run's ledger has all that the last written checkpoint lacks.
        Other processes see that checkpoint, and so does this one when the lock is let go without a `save`.
        """


@runtime_checkable
class QueryableRunStore(Protocol):
    """A store that can look for runs."""

    def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        wait_reason: WaitReason | None = None,
        workflow_id: str | None = None,
        limit: int = 100,
    ) -> list[RunState]:
        """Return the runs that fit all that is given, the last updated first."""

    def list_due_wait_until(self, *, now_iso: str, limit: int = 100) -> list[RunState]:
        """Return waiting runs whose instant or deadline is `now_iso` or earlier, the earliest first."""

    def list_children(
        self, *, parent_run_id: str, status: RunStatus | None = None
    ) -> list[RunState]:
        """Return the runs that this one started, in the order of their making."""


@runtime_checkable
class PagedRunStore(Protocol):
    """A store whose runs can be read page by page, so that a reader comes to all of them."""

    def list_page(
        self,
        *,
        after: str,
        limit: int,
        status: RunStatus | None = None,
        wait_reason: WaitReason | None = None,
        due_by: str | None = None,
    ) -> list[RunState]:
        """Return the runs that fit all that is given and whose ids come after `after`, in order of their ids.

        Args:
            after: An id; empty: the first page.
            limit: Maximum number of runs.
            status: Only runs with this status.
            wait_reason: Only runs that wait, or of which a branch waits, for this kind.
            due_by: Only waiting runs whose instant or deadline is this one or earlier.
        """


@runtime_checkable
class QueryableRunIndexStore(Protocol):
    """A store that lists runs without their variables."""

    def list_run_index(
        self,
        *,
        status: RunStatus | None = None,
        workflow_id: str | None = None,
        session_id: str | None = None,
        root_only: bool = False,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Return rows of runs, the last updated first; see `run_state.index_row`."""


@runtime_checkable
class EventWaitStore(Protocol):
    """A store that finds who waits for an event, without a look at all runs."""

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """Return runs that wait for one of these keys now, the last updated first."""
