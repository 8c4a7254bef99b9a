"""Limits over all hosts: what they are, who holds places, and the buckets of starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from actors.kernel.runtime.limits import Grant, Limit, LimitScope, LimitUse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.runtime.ids import HostIncarnation
    from actors.kernel.runtime.limits import Claim
    from persistence.postgres.link import Links, Row

SQL_SET_LIMIT: Final[LiteralString] = "select set_limit($1, $2, $3, $4, $5)"
SQL_DELETE_LIMIT: Final[LiteralString] = "select delete_limit($1) as is_gone"
SQL_SELECT_LIMITS: Final[LiteralString] = (
    "select scope, max_concurrent, rate_per_s, burst, weight, held, wanting, hosts"
    " from limits_in_use()"
)
SQL_EXCHANGE_PLACES: Final[LiteralString] = (
    "select scope, held, share, contended, starts, next_s from exchange_places($1, $2, $3, $4, $5)"
)


class PostgresLimits:
    """See `LimitStore`."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def set(self, limit: Limit) -> None:
        """See `LimitStore.set`."""
        await self._links.fetch(
            "setting a limit", SQL_SET_LIMIT, str(limit.scope), limit.max_concurrent,
            limit.rate_per_s, limit.most_starts, limit.weight,
        )  # fmt: skip

    async def delete(self, scope: LimitScope) -> bool:
        """See `LimitStore.delete`. After an answer that was lost it may say False."""
        rows = await self._links.fetch("deleting a limit", SQL_DELETE_LIMIT, str(scope))
        return bool(rows[0]["is_gone"])

    async def list(self) -> list[LimitUse]:
        """See `LimitStore.list`."""
        rows = await self._links.fetch("reading limits", SQL_SELECT_LIMITS)
        return [
            LimitUse(
                limit=_limit(row), held=row["held"], wanting=row["wanting"], hosts=row["hosts"]
            )
            for row in rows
        ]

    async def exchange(self, owner: HostIncarnation, claims: Sequence[Claim]) -> Sequence[Grant]:
        """See `LimitStore.exchange`. Starts of an answer that was lost are lost."""
        rows = await self._links.fetch(
            "exchanging places",
            SQL_EXCHANGE_PLACES,
            owner,
            [str(claim.scope) for claim in claims],
            [claim.held for claim in claims],
            [claim.wanted for claim in claims],
            [claim.starts for claim in claims],
        )
        return [
            Grant(
                scope=LimitScope.parse(row["scope"]), held=row["held"], share=row["share"],
                contended=row["contended"], starts=row["starts"], next_start_s=row["next_s"],
            )
            for row in rows
        ]  # fmt: skip


def _limit(row: Row) -> Limit:
    has_rate = row["rate_per_s"] is not None
    return Limit(
        scope=LimitScope.parse(row["scope"]), max_concurrent=row["max_concurrent"],
        rate_per_s=row["rate_per_s"], burst=row["burst"] if has_rate else None, weight=row["weight"],
    )  # fmt: skip
