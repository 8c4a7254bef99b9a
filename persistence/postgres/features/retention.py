"""Retention: taking away what is old, in small batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.runtime.ids import AgentId, HostIncarnation, RunId, partition_hash
from actors.kernel.stores.forgotten import Forgotten
from actors.kernel.stores.runs import RetentionStore
from persistence.postgres.connection.link import Links

SQL_SWEEP_RUNS: Final[LiteralString] = "select sweep_runs($1, $2) as n"
SQL_SWEEP_THESE: Final[LiteralString] = "select sweep_these($1) as n"
SQL_FORGET_AGENT: Final[LiteralString] = (
    "select open_run, state, follows, messages, letters, runs, more from forget_agent($1,$2,$3,$4,$5)"
)
SQL_FORGET_OLD: Final[LiteralString] = "select forget_old($1, $2) as n"
SQL_FORGET_IDS: Final[LiteralString] = "select taken, last from forget_ids($1, $2)"
SQL_FORGET_USAGE: Final[LiteralString] = "select taken, last from forget_usage($1, $2, $3)"
SQL_FORGET_AUDIT: Final[LiteralString] = "select forget_audit($1, $2) as taken"
FIRST_TOTAL: Final = ["", "", "", "-infinity"]
"""Position before all totals of usage."""


class Retention(RetentionStore):
    """The removal of old rows.

    Args:
        owner: The incarnation of the host.
        links: Connections, each for one statement at a time.
        remove_objects: Function that removes at most that many objects of removed artifacts.
    """

    def __init__(
        self, owner: HostIncarnation, links: Links, remove_objects: Callable[[int], Awaitable[int]]
    ) -> None:
        self._me, self._links, self._remove_objects = owner, links, remove_objects
        self._id = b""
        """Message id from which the next search for ids without a run continues; these expire sooner."""
        self._total: list[str] = FIRST_TOTAL
        """Usage total from which the next search for old totals continues."""

    @override
    async def sweep(self, *, older_than_s: float | None, limit: int = 200) -> int:
        return int(
            await self._links.value("sweeping runs", SQL_SWEEP_RUNS, _span(older_than_s), limit)
        )

    @override
    async def sweep_these(self, run_ids: Sequence[RunId]) -> int:
        return int(await self._links.value("sweeping runs", SQL_SWEEP_THESE, [*run_ids]))

    @override
    async def forget_old(self, *, older_than_s: float | None, limit: int = 2000) -> int:
        """See `RetentionStore.forget_old`. Ids of messages that ended an hour ago move to a table of ids."""
        args = (_span(older_than_s), limit)
        taken = int(await self._links.value("forgetting", SQL_FORGET_OLD, *args))
        [row] = await self._links.fetch("forgetting ids", SQL_FORGET_IDS, self._id, limit)
        self._id = row["last"] or b""
        if taken < limit:
            await self._remove_objects(limit)
        taken += int(row["taken"])
        if older_than_s is None:
            return taken
        taken += int(await self._links.value("forgetting audit rows", SQL_FORGET_AUDIT, *args))
        return taken + await self._forget_usage(*args)

    async def _forget_usage(self, older: timedelta | None, limit: int) -> int:
        args = (self._total, older, limit)
        [row] = await self._links.fetch("forgetting usage", SQL_FORGET_USAGE, *args)
        self._total = row["last"] or FIRST_TOTAL
        return int(row["taken"])

    @override
    async def forget_agent(
        self, agent_id: AgentId, *, cancel: bool = False, limit: int = 200
    ) -> Forgotten:
        args = (self._me, str(agent_id), partition_hash(agent_id), cancel, limit)
        (row,) = await self._links.fetch("forgetting an agent", SQL_FORGET_AGENT, *args)
        return Forgotten(**row)


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
