"""Lists of runs: by a look at all of them, and of a run with those below it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from actors.kernel.workflow.effects import RunStatus, WaitReason
from actors.kernel.workflow.run_state import RunChoice, RunState, due_at, due_runs, index_row
from actors.kernel.workflow.run_store import (
    PagedRunStore,
    QueryableRunIndexStore,
    QueryableRunStore,
)


class RunShelf(QueryableRunStore, QueryableRunIndexStore, PagedRunStore):
    """The lists of a run store that looks at all of its runs each time."""

    @override
    def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        wait_reason: WaitReason | None = None,
        workflow_id: str | None = None,
        limit: int = 100,
    ) -> list[RunState]:
        wanted = RunChoice(status=status, wait_reason=wait_reason, workflow_id=workflow_id)
        return [one.copied() for one in wanted.chosen(self._all(), limit)]

    @override
    def list_due_wait_until(self, *, now_iso: str, limit: int = 100) -> list[RunState]:
        return [one.copied() for one in due_runs(self._all(), now_iso, limit)]

    @override
    def list_page(
        self,
        *,
        after: str,
        limit: int,
        status: RunStatus | None = None,
        wait_reason: WaitReason | None = None,
        due_by: str | None = None,
    ) -> list[RunState]:
        choice = RunChoice(status=status, wait_reason=wait_reason)
        runs = [
            run
            for run in self._all()
            if run.run_id > after
            and choice.fits(run)
            and (due_by is None or (due_at(run) or "~") <= due_by)
        ]
        runs.sort(key=lambda run: run.run_id)
        return [run.copied() for run in runs[:limit]]

    @override
    def list_children(
        self, *, parent_run_id: str, status: RunStatus | None = None
    ) -> list[RunState]:
        return [
            one.copied()
            for one in self._all()
            if one.parent_run_id == parent_run_id and status in {None, one.status}
        ]

    @override
    def list_run_index(
        self,
        *,
        status: RunStatus | None = None,
        workflow_id: str | None = None,
        session_id: str | None = None,
        root_only: bool = False,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        wanted = RunChoice(
            status=status, workflow_id=workflow_id, session_id=session_id, root_only=root_only
        )
        return [index_row(one) for one in wanted.chosen(self._all(), limit)]

    def _all(self) -> Iterable[RunState]:
        """Return all runs, in the order of their making. They may share what they hold with the store."""
        raise NotImplementedError


def tree_of(runs: QueryableRunStore, root: RunState) -> list[RunState]:
    """Return a run and the runs below it, each after the run that started it."""
    found = [root]
    for run in found:
        found += runs.list_children(parent_run_id=run.run_id)
    return found
