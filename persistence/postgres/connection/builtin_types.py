"""PostgreSQL's own types, looked up once a process: the driver asks each new connection for them.

Its statement for that is a recursion over the catalog, which takes the server 7 ms of CPU a connection,
more than all else that opening one takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Iterable

    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

FIRST_UNSTABLE_OID: Final = 10_000
"""Below it the same number is the same type on every server (PostgreSQL's transam.h)."""

_known: dict[int, asyncpg.Record] = {}


@dataclass(frozen=True, slots=True)
class _NoStatement:
    """Says to the driver that nothing was prepared, so that what it has prepared is still there."""

    name: str = "known"


class TypedConnection(_Base):
    """A connection that knows the types that another connection of this process has learned."""

    __slots__ = ()

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> Any:
        """Return rows on these types, and the statement that asked for them; the driver's own hook."""
        oids = set(typeoids)
        if oids <= _known.keys():
            return [_known[oid] for oid in oids], _NoStatement()
        rows, statement = await super()._introspect_types(oids, timeout)  # type: ignore[misc]
        _known.update({row["oid"]: row for row in rows if row["oid"] < FIRST_UNSTABLE_OID})
        return rows, statement
