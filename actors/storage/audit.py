"""Audit rows in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from itertools import islice

from typing_extensions import override

from actors.kernel.stores.administration import (
    AuditRow,
    AuditStore,
    EraseRequest,
    EraseScope,
    NewAuditRow,
)
from actors.kernel.text import check_name_of


class InMemoryAudit(AuditStore):
    """An `AuditStore` whose rows are lost with its process.

    Args:
        now: The clock for the rows' instants.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._rows: dict[int, AuditRow] = {}
        self._written: dict[tuple[str, str], int] = {}
        self._last = 0

    @override
    async def add(self, new: NewAuditRow) -> AuditRow:
        if new.write_id is not None:
            known = self._written.setdefault((new.tenant, new.write_id), self._last + 1)
            if known <= self._last:
                return self._rows[known]
        self._last += 1
        facts = asdict(new) | {"agent": new.agent}
        row = self._rows[self._last] = AuditRow(**facts, id=self._last, at=self._now())
        return row

    @override
    async def list(
        self, tenant: str, *, thing: str | None = None, after: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        check_name_of("thing", thing or "")
        found = (
            row
            for row in reversed(self._rows.values())
            if row.tenant == tenant
            and thing in (None, row.thing)
            and (after is None or row.id < after)
        )
        return [*islice(found, limit)]

    def forget(self, before: datetime, *, limit: int) -> int:
        """Delete rows from before an instant, the oldest first; return their number."""
        old = [id_ for id_, row in islice(self._rows.items(), limit) if row.at < before]
        for id_ in old:
            self._delete(id_)
        return len(old)

    def removals(self, what: EraseRequest) -> Iterator[Callable[[], object]]:
        """Yield for each row that an erase covers a function that deletes or clears it."""
        for id_, row in self._rows.items():
            if what.scope is EraseScope.TENANT and row.tenant == what.tenant:
                yield partial(self._delete, id_)
            is_clear = row.before is None and row.after is None
            if what.scope is EraseScope.AGENT and row.agent == what.agent and not is_clear:
                yield partial(self._clear, id_)

    def _delete(self, id_: int) -> None:
        row = self._rows.pop(id_, None)
        if row is not None:
            self._written.pop((row.tenant, row.write_id or ""), None)

    def _clear(self, id_: int) -> None:
        self._rows[id_] = replace(self._rows[id_], before=None, after=None)
