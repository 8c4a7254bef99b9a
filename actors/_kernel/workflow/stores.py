"""Stores that a driver of graphs needs: checkpoints of runs, records of steps, and commands.

A list of runs looks at all of them; a tree is a run with those below it. Records are append-only, in order,
by run. Commands come to runs from outside; they are kept once each, in order, and read from a cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from actors._kernel.workflow.effects import RunStatus, WaitReason
from actors._kernel.workflow.run_state import RunChoice, RunState, due_at, due_runs, index_row
from actors._kernel.workflow.step_record import StepRecord

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
        """Return the last checkpoint, or None if there is no such run."""


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
            due_by: An instant in ISO 8601; only waiting runs that are due then, or were before.
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
        choice = RunChoice(status=status, wait_reason=wait_reason, workflow_id=workflow_id)
        return [run.copied() for run in choice.chosen(self._all(), limit)]

    @override
    def list_due_wait_until(self, *, now_iso: str, limit: int = 100) -> list[RunState]:
        return [run.copied() for run in due_runs(self._all(), now_iso, limit)]

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
            run.copied()
            for run in self._all()
            if run.parent_run_id == parent_run_id and status in {None, run.status}
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
        choice = RunChoice(
            status=status, workflow_id=workflow_id, session_id=session_id, root_only=root_only
        )
        return [index_row(run) for run in choice.chosen(self._all(), limit)]

    def _all(self) -> Iterable[RunState]:
        """Return all runs, in the order of their making. They may share what they hold with the store."""
        raise NotImplementedError


def tree_of(runs: QueryableRunStore, root: RunState) -> list[RunState]:
    """Return a run and the runs below it, each after the run that started it."""
    tree = [root]
    # The loop also reaches the runs that it appends, so it comes to all levels without a recursion.
    for run in tree:
        tree += runs.list_children(parent_run_id=run.run_id)
    return tree


Subscriber: TypeAlias = Callable[[dict[str, Any]], None]


@runtime_checkable
class LedgerStore(Protocol):
    """Records by run. There is no way to change one."""

    def append(self, record: StepRecord) -> None:
        """Append a record to those of its run; durable when this returns.

        Raises:
            NotSerializableError: The path of what is not JSON data. Nothing is kept.
        """

    def list(self, run_id: str) -> list[dict[str, Any]]:
        """Return all records of the run, the first one first."""


@runtime_checkable
class PagedLedgerStore(LedgerStore, Protocol):
    """A ledger that can be read from a position on, and written in groups."""

    def append_many(self, records: Sequence[StepRecord]) -> None:
        """Keep records of one run in order: a beginning of them if the process dies, all if this returns."""

    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Return at most `limit` records after the first `after` ones, and the next `after`."""

    def count(self, run_id: str) -> int:
        """Return the number of records."""


@runtime_checkable
class UnsyncedLedgerStore(LedgerStore, Protocol):
    """A ledger that can leave the sync of records to a later write."""

    def append_unsynced(self, records: Sequence[StepRecord]) -> None:
        """Keep records of one run in order. Then the death of a process cannot lose them.

        A loss of power can, until a later append to the ledger or `sync` returns. If it loses a record, it
        loses all records after it, too.
        """

    def sync(self, run_id: str) -> None:
        """Return when no loss of power can lose a record of the run, whichever process appended it."""

    def mend(self, run_id: str, *, synced_count: int) -> bool:
        """Remove the remains of unsynced records that a loss of power left; return whether there were any.

        The first `synced_count` records are synced, and damage to them is not removed.
        """


@runtime_checkable
class ChainableLedgerStore(LedgerStore, Protocol):
    """A ledger that links a record to the last one in one step, so that writers never fork the chain."""

    def append_chained(self, record: StepRecord) -> None:
        """Keep the record, linked to the last one of its run by its hash."""


@runtime_checkable
class DeletableLedgerStore(Protocol):
    """A ledger that can remove all records of a run."""

    def delete(self, run_id: str) -> int:
        """Remove them; return how many."""


@runtime_checkable
class ObservableLedgerStoreProtocol(Protocol):
    """A ledger that notifies subscribers in this process of each record."""

    def subscribe(self, callback: Subscriber, *, run_id: str | None = None) -> Callable[[], None]:
        """Call `callback` after each append, to one run or to any; return a function that ends the calls."""


class LedgerShelf(PagedLedgerStore):
    """The verbs of a ledger that follow from the others."""

    @override
    def append(self, record: StepRecord) -> None:
        self.append_many([record])

    def append_unsynced(self, records: Sequence[StepRecord]) -> None:
        """Append records as `append_many` does: this store syncs each append."""
        self.append_many(records)

    def sync(self, run_id: str) -> None:
        """Return: each append has synced its records."""

    def mend(self, run_id: str, *, synced_count: int) -> bool:
        """Return False: without unsynced records, a loss of power leaves no remains of them."""
        del run_id, synced_count
        return False

    def count_many(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return the numbers of records, by run; runs without any are left out."""
        return {run_id: count for run_id in run_ids if (count := self.count(run_id))}

    def metrics_many(self, run_ids: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return `metrics_of` of each run that has records."""
        return {run_id: metrics_of(rows) for run_id in run_ids if (rows := self.list(run_id))}


def metrics_of(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the counts of what ended well: ``steps``, ``llm_calls``, ``tool_calls``, ``tokens_total``."""
    counts = {"steps": 0, "llm_calls": 0, "tool_calls": 0, "tokens_total": 0}
    for record in records:
        if record.get("status") != "completed":
            continue
        counts["steps"] += 1
        effect, result = record.get("effect") or {}, record.get("result")
        if effect.get("type") == "llm_call":
            counts["llm_calls"] += 1
            usage = result.get("usage") if isinstance(result, dict) else None
            total = usage.get("total_tokens") if isinstance(usage, dict) else None
            # A handler may report anything here; `True` is an int, but no number of tokens.
            counts["tokens_total"] += total if type(total) is int else 0
        elif effect.get("type") == "tool_calls":
            calls = (effect.get("payload") or {}).get("tool_calls")
            counts["tool_calls"] += len(calls) if isinstance(calls, list) else 0
    return counts


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A command.

    Attributes:
        command_id: Its name; a second one of the same name is not kept.
        run_id: The run.
        type: For example ``pause`` or ``cancel``.
        payload: JSON data.
        ts: When it was given.
        seq: Its position in the store, from 1; given by the store.
        client_id: The client that gave the command.
    """

    command_id: str
    run_id: str
    type: str
    payload: dict[str, Any] = field(default_factory=dict)
    ts: str = ""
    seq: int = 0
    client_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the command as stores keep it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CommandAppendResult:
    """The end of an append: one of `accepted` and `duplicate`; `seq` is the position of the kept one."""

    accepted: bool
    duplicate: bool
    seq: int


@runtime_checkable
class CommandStore(Protocol):
    """Commands in one order."""

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """Keep the command, unless one of its id is there. Durable when this returns."""

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """Return at most `limit` commands after `after`, and the cursor for the next call."""

    def get_last_seq(self) -> int:
        """Return the position of the last command; 0: there is none."""


@runtime_checkable
class DeletableCommandStore(CommandStore, Protocol):
    """A store from which the commands of a run can be removed."""

    def delete(self, run_id: str) -> int:
        """Remove the commands to a run; return how many.

        Their ids and positions stay taken: none of them is accepted again, and no reader misses a later one.
        """


@runtime_checkable
class CommandCursorStore(Protocol):
    """The position up to which a reader has carried out commands."""

    def load(self) -> int:
        """Return it; 0 at first."""

    def save(self, cursor: int) -> None:
        """Keep it; durable when this returns."""
