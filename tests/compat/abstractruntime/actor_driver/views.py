"""The source's stores in memory as readers of the actor driver's rows.

A runtime that is given one reads its runs for it. What writes into them is refused: no program may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from typing_extensions import override

from actors.workflow import InMemoryLedgerStore as Ledger
from actors.workflow import InMemoryRunStore as Runs
from actors.workflow import RunState, RunStatus


class NotApplicableError(Exception):
    """The case asks for what the actor driver does not have."""


class InMemoryRunStore(Runs):
    """Runs as a program may read them.

    Attributes:
        app: The app whose runs these are.
        loaded: Reads a run; None: no runtime was given this store.
        children: Reads the runs that a run started.
    """

    _count: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.app = new_app()
        self.loaded: Callable[[str], RunState | None] | None = None
        self.children: Callable[[str], list[RunState]] | None = None

    @override
    def load(self, run_id: str) -> RunState | None:
        return super().load(run_id) if self.loaded is None else self.loaded(run_id)

    @override
    def list_children(
        self, *, parent_run_id: str, status: RunStatus | None = None
    ) -> list[RunState]:
        if self.children is None:
            return super().list_children(parent_run_id=parent_run_id, status=status)
        children = self.children(parent_run_id)
        return [child for child in children if status in (None, child.status)]

    @override
    def save(self, run: RunState) -> None:
        if self.loaded is not None:
            raise NotApplicableError("the case writes into the store beside the driver")
        super().save(run)


class InMemoryLedgerStore(Ledger):
    """Ledgers as a program may read them.

    Attributes:
        read: Reads one; None: no runtime was given this store.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: Callable[[str], list[dict[str, Any]]] | None = None

    @override
    def list(self, run_id: str) -> list[dict[str, Any]]:
        return super().list(run_id) if self.read is None else self.read(run_id)


_apps = 0


def new_app() -> str:
    """Return the name of an app that no other store has."""
    global _apps  # noqa: PLW0603 - of the process
    _apps += 1
    return f"app-{_apps}"
