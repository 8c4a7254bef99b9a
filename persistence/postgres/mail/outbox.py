"""OutboxStore on PostgreSQL. The rows are written by the committer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, LiteralString

from pydantic_core import from_json
from typing_extensions import override

from actors.kernel.agent.message import Message, stored_message
from actors.kernel.json import read_or
from actors.kernel.runtime.ids import AgentId, ShardId, TopicId
from actors.kernel.runtime.scheduler import ShardLease
from actors.kernel.stores.transport import OutboxRow, OutboxStore
from persistence.postgres.commits.committer import Committer
from persistence.postgres.commits.encode import columns
from persistence.postgres.connection.batch import Batched, Batcher
from persistence.postgres.connection.link import Links, Row

SQL_OUTBOX: Final[LiteralString] = "select n, body, dead, target_read from outbox_page($1,$2,$3)"
# Of the few rows that cannot be read.
SQL_OUTBOX_KEYS: Final[LiteralString] = """
select o.n, o.sender, o.target, o.message_id from unnest($1::text[]) s(shard)
  cross join lateral (select x.* from outbox x where x.shard = s.shard and x.n = any($2::bigint[]) offset 0) o
"""
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
        found, damaged = list[OutboxRow](), dict[int, Row]()
        for row in rows:
            message = read_or(row["body"], _message_of, lambda _: None)
            if message is None:
                damaged[row["n"]] = row
            else:
                found.append(OutboxRow(row["n"], message, row["dead"], row["target_read"]))
        if damaged:
            found = sorted(
                [*found, *await self._unreadable(shards, damaged)], key=lambda row: row.n
            )
        return found

    async def _unreadable(self, shards: list[ShardId], damaged: dict[int, Row]) -> list[OutboxRow]:
        """Return rows whose bodies cannot be read, with sender, target and id as their columns have them."""
        keys = await self._links.fetch("reading the outbox", SQL_OUTBOX_KEYS, shards, [*damaged])
        return [_unreadable_row(damaged[key["n"]], key) for key in keys]

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


def _message_of(body: str) -> Message:
    return Message.from_json(from_json(body))


def _unreadable_row(row: Row, key: Row) -> OutboxRow:
    kind, _, rest = key["target"].partition(":")
    place = AgentId.parse(rest if kind in ("dead", "topic") else key["target"])
    message = stored_message(row["body"], id_=key["message_id"], target=place, sender=key["sender"])
    if kind == "topic":
        message = replace(message, target=TopicId(place.type, place.key, place.tenant))
    return OutboxRow(row["n"], message, row["dead"], row["target_read"])


def _key(row: OutboxRow) -> tuple[str | None, str, int]:
    """Return sender, target and `n` as in the table. A prefix of the target marks dead letters and posts."""
    target = str(row.message.target)
    if row.dead_letter is not None:
        target = f"dead:{target}"
    elif isinstance(row.message.target, TopicId):
        target = f"topic:{target}"
    return row.message.sender, target, row.n
