"""Rows that only an erase of their whole tenant takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, LiteralString

from typing_extensions import override

from actors.kernel.stores.administration import (
    ERASE_BATCH,
    Erasable,
    EraseCount,
    EraseRequest,
    EraseScope,
)
from persistence.postgres.connection.link import Links


class TenantRows(Erasable):
    """The `Erasable` of a table of which an erase of a tenant takes all rows of that tenant.

    Args:
        links: Connections, each for one statement at a time.

    Attributes:
        kind: Name of the rows in a report.
        sql_erase: Deletes at most `$2` rows of tenant `$1` and returns their number.
        sql_count: Returns the number of rows of tenant `$1`.
    """

    kind: ClassVar[str]
    sql_erase: ClassVar[LiteralString]
    sql_count: ClassVar[LiteralString]

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        del cursor
        if what.scope is not EraseScope.TENANT:
            return EraseCount()
        args = (what.tenant, limit)
        gone = await self._links.value(f"erasing {self.kind}", self.sql_erase, *args)
        return EraseCount({self.kind: gone}, "+" if gone == limit else None)

    @override
    async def count(self, what: EraseRequest) -> Mapping[str, int]:
        if what.scope is not EraseScope.TENANT:
            return {}
        doing = f"counting {self.kind}"
        return {self.kind: await self._links.value(doing, self.sql_count, what.tenant)}
