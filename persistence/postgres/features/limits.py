"""Limits over all hosts: their values, the holders of slots, and the buckets of starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.runtime.ids import HostIncarnation
from actors.kernel.stores.limits import Claim, Grant, Limit, LimitScope, LimitStore, LimitUse
from persistence.postgres.commits.encode import columns
from persistence.postgres.connection.link import Links, Row

SQL_SET_LIMIT: Final[LiteralString] = "select set_limit($1, $2, $3, $4, $5)"
SQL_DELETE_LIMIT: Final[LiteralString] = "select delete_limit($1) as is_gone"
SQL_SELECT_LIMITS: Final[LiteralString] = (
    "select scope, max_concurrent, rate_per_s, burst, weight, held, wanting, hosts"
    " from limits_in_use()"
)
SQL_EXCHANGE_PLACES: Final[LiteralString] = (
    "select scope, held, share, contended, starts, next_s as next_start_s"
    " from exchange_places($1, $2, $3, $4, $5)"
)


class PostgresLimits(LimitStore):
    """Limits as rows."""

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def set(self, limit: Limit) -> None:
        await self._links.fetch(
            "setting a limit",
            SQL_SET_LIMIT,
            str(limit.scope),
            limit.max_concurrent,
            limit.rate_per_s,
            limit.most_starts,
            limit.weight,
        )

    @override
    async def delete(self, scope: LimitScope) -> bool:
        """After an answer that was lost it may say False."""
        return bool(await self._links.value("deleting a limit", SQL_DELETE_LIMIT, str(scope)))

    @override
    async def list(self) -> list[LimitUse]:
        rows = await self._links.fetch("reading limits", SQL_SELECT_LIMITS)
        return [
            LimitUse(
                limit=_limit(row), held=row["held"], wanting=row["wanting"], hosts=row["hosts"]
            )
            for row in rows
        ]

    @override
    async def exchange(self, owner: HostIncarnation, claims: Sequence[Claim]) -> Sequence[Grant]:
        """Starts of an answer that was lost are lost."""
        rows = await self._links.fetch(
            "exchanging places",
            SQL_EXCHANGE_PLACES,
            owner,
            *columns(((str(one.scope), one.held, one.wanted, one.starts) for one in claims), 4),
        )
        return [Grant(**{**row, "scope": LimitScope.parse(row["scope"])}) for row in rows]


def _limit(row: Row) -> Limit:
    has_rate = row["rate_per_s"] is not None
    return Limit(
        scope=LimitScope.parse(row["scope"]),
        max_concurrent=row["max_concurrent"],
        rate_per_s=row["rate_per_s"],
        burst=row["burst"] if has_rate else None,
        weight=row["weight"],
    )
