"""A run while a driver holds it: state, records that are not kept yet, the effect that has begun."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actors.kernel.workflow.errors import NoSuchRunError
from actors.kernel.workflow.ledger_store import LedgerStore
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.run_store import RunStore
from actors.kernel.workflow.step_record import StepRecord
from actors.workflow.embedded.stores.ledgers import append_all, records_after
from actors.workflow.machine.deltas import OpenStep
from actors.workflow.machine.records import Transition
from actors.workflow.machine.recovery import folded
from actors.workflow.machine.variables import RECORDS, RUNTIME, SEQ, namespace, with_path

PAGE = 1000


class HeldRun:
    """A run as a driver sees it: the last checkpoint, and on top of it what the ledger has beyond it.

    The caller holds the run's lock. Records are durable when `flush` returns, the state when `save` does.

    Attributes:
        state: The state now.
        opened: The effect that has begun and has no end; None: there is none.
        recovered: Whether `opened` is the work of a driver that died.

    Raises:
        NoSuchRunError: The store has no such run.
    """

    def __init__(self, runs: RunStore, ledger: LedgerStore, run_id: str) -> None:
        self._runs, self._ledger = runs, ledger
        saved = runs.load(run_id)
        if saved is None:
            raise NoSuchRunError(run_id)
        own = namespace(saved.vars, RUNTIME)
        self._count = int(own.get(RECORDS) or 0) if SEQ in own else 0
        self._open_at = self._count
        self.state, self.opened = self._read_on(saved)
        self.recovered = self.opened is not None
        self._buffer: list[StepRecord] = []
        self._is_saved = self.state is saved

    def take(self, decided: Transition) -> None:
        """Go on with a decision. Nothing is durable before `flush` or `save`."""
        if self.opened is None:
            self._open_at = self._count + len(self._buffer)
        self._buffer += decided.records
        self._is_saved = self._is_saved and decided.state is self.state
        self.recovered = self.recovered and decided.opened is self.opened
        self.state, self.opened = decided.state, decided.opened

    def flush(self) -> None:
        """Keep the records of all decisions so far."""
        if self._buffer:
            append_all(self._ledger, self._buffer)
            self._count += len(self._buffer)
            self._buffer = []

    def save(self) -> None:
        """Keep records and state."""
        self.flush()
        if self._is_saved:
            return
        count = self._count if self.opened is None else self._open_at
        counted = with_path(self.state.vars, [RUNTIME, RECORDS], count)
        state = replace(self.state, vars=counted)
        offloaded = getattr(self._runs, "offloaded", None)
        self.state = state if offloaded is None else offloaded(state)
        self._runs.save(self.state)
        self._is_saved = True

    def _read_on(self, saved: RunState) -> tuple[RunState, OpenStep | None]:
        records: list[Any] = []
        while True:
            page, self._count = records_after(
                self._ledger, run_id=saved.run_id, after=self._count, limit=PAGE
            )
            records += page
            if len(page) < PAGE:
                break
        return folded(saved, records)
