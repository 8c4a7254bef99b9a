"""OutboxStore on PostgreSQL. The rows are written by the committer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, LiteralString

from pydantic_core import from_json
from typing_extensions import override

from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import TopicId
from actors.kernel.runtime.scheduler import ShardLease
from actors.kernel.store.transport import OutboxRow, OutboxStore
from persistence.postgres.commits.committer import Committer
from persistence.postgres.commits.encode import columns
from persistence.postgres.connection.batch import Batched, Batcher
from persistence.postgres.connection.link import Links

SQL_OUTBOX: Final[LiteralString] = "select n, body, dead, target_read from outbox_page($1,$2,$3)"
SQL_FORGET_SENT: Final[LiteralString] = "select forget_sent($1,$2,$3)"
SQL_BURY: Final[LiteralString] = "select bury_outbox($1,$2,$3,$4)"
SQL_HAND_OVER: Final[LiteralString] = "select n from hand_over($1,$2,$3)"


class Outbox(OutboxStore):
    """See `OutboxStore`.

    Args:
        links: The connections for statements.
        committer: The committer, which notifies of new rows.
        limit: Maximum number of rows that one statement hands over.
    """

    def __init__(self, links: Links, committer: Committer, *, limit: int) -> None:
        self._links, self._committer = links, committer
        self._rows: Batcher[OutboxRow, bool] = Batcher(self._hand_over, limit=limit)
        self.batchers = (self._rows,)

    @override
    async def page(
        self, leases: Sequence[ShardLease], *, after: int = -1, limit: int = 1000
    ) -> list[OutboxRow]:
        shards = [lease.shard for lease in leases]
        rows = await self._links.fetch("reading the outbox", SQL_OUTBOX, shards, after, limit)
        return [
            OutboxRow(
                row["n"], Message.from_json(from_json(row["body"])), row["dead"], row["target_read"]
            )
            for row in rows
        ]

    @override
    async def forget(self, rows: Sequence[OutboxRow]) -> None:
        keys = columns(map(_key, rows), 3)
        await self._links.fetch("forgetting what was sent", SQL_FORGET_SENT, *keys)

    @override
    async def bury(self, row: OutboxRow, problem: str) -> None:
        args = (*_key(row), problem.replace("\x00", ""))
        await self._links.fetch("giving up what cannot be published", SQL_BURY, *args)

    @override
    async def hand_over(self, row: OutboxRow) -> bool:
        return await self._rows.call(row)

    async def _hand_over(self, calls: list[Batched[OutboxRow, bool]]) -> None:
        rows = (call.args for call in calls)
        keys = columns(((row.message.sender, str(row.message.target), row.n) for row in rows), 3)
        left = await self._links.fetch("handing messages over", SQL_HAND_OVER, *keys)
        waiting = {row["n"] for row in left}
        for call in calls:
            call.answer(call.args.n not in waiting)

    @override
    def set_hook(self, hook: Callable[[Sequence[OutboxRow]], None] | None) -> None:
        self._committer.on_posted = hook


def _key(row: OutboxRow) -> tuple[str | None, str, int]:
    """Return sender, target and `n` as in the table. A prefix of the target marks dead letters and posts."""
    target = str(row.message.target)
    if row.dead_letter is not None:
        target = f"dead:{target}"
    elif isinstance(row.message.target, TopicId):
        target = f"topic:{target}"
    return row.message.sender, target, row.n
