"""Commands in memory."""

from __future__ import annotations

import threading
from dataclasses import replace

from actors.kernel.workflow.durable import durable_copy
from actors.kernel.workflow.stores import CommandAppendResult, CommandRecord


class InMemoryCommandStore:
    """See `CommandStore`."""

    def __init__(self) -> None:
        self._records: list[CommandRecord | None] = []
        self._seq_of: dict[str, int] = {}
        self._lock = threading.Lock()

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """See `CommandStore.append`."""
        payload = durable_copy(record.payload, "payload")
        with self._lock:
            known = self._seq_of.get(record.command_id)
            if known is not None:
                return CommandAppendResult(accepted=False, duplicate=True, seq=known)
            seq = len(self._records) + 1
            self._records.append(replace(record, seq=seq, payload=payload))
            self._seq_of[record.command_id] = seq
        return CommandAppendResult(accepted=True, duplicate=False, seq=seq)

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """See `CommandStore.list_after`."""
        with self._lock:
            page = [one for one in self._records[after:] if one is not None][:limit]
        return page, page[-1].seq if page else after

    def get_last_seq(self) -> int:
        """See `CommandStore.get_last_seq`."""
        with self._lock:
            return len(self._records)

    def delete(self, run_id: str) -> int:
        """See `DeletableCommandStore.delete`."""
        with self._lock:
            kept = [None if one is None or one.run_id == run_id else one for one in self._records]
            count = self._records.count(None)
            self._records = kept
        return kept.count(None) - count


class InMemoryCommandCursorStore:
    """See `CommandCursorStore`."""

    def __init__(self) -> None:
        self._cursor = 0

    def load(self) -> int:
        """See `CommandCursorStore.load`."""
        return self._cursor

    def save(self, cursor: int) -> None:
        """See `CommandCursorStore.save`."""
        self._cursor = cursor
