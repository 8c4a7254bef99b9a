"""Inbound messages: a host writes its shards' messages as rows, then offers them to the worker.

`Inbound.read` takes batches from the broker. `MailStore.ingest` commits them, on Postgres in
`persistence/postgres/mail/mail.py`; then they are durable, and only then acknowledged. No message waits here
for an agent's code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from actors.errors import BrokerError, PersistenceError
from actors.kernel.runtime.commit import LeaseLost
from actors.kernel.runtime.ids import ShardId
from actors.kernel.runtime.scheduler import ShardLease
from actors.kernel.stores.transport import (
    Cursor,
    Ingested,
    IngestOutcome,
    MailBatch,
    MailConnection,
    MailStore,
    StaleStream,
    Undecodable,
)
from actors.runtime.loop.tasks import TaskScope
from actors.runtime.worker.worker import Worker

_log = logging.getLogger("callboard.delivery")

AGAIN_S: Final = 0.5
"""Seconds before a batch that the store could not write is written again."""


class Inbound:
    """Reads shards from a connection into rows.

    Args:
        rows: The store that commits batches.
        worker: The worker that gets new messages.
        tasks: The scope in which batches are written. A batch is always finished, also if its connection is
            lost: its messages must be offered before any later message of the shard.
        on_broken: Called with the reason when reading cannot continue over this connection, or when the
            stream was made again.
        on_posted: Called with each shard of this host that has followers of a received post.
    """

    def __init__(
        self,
        rows: MailStore,
        worker: Worker,
        *,
        tasks: TaskScope,
        on_broken: Callable[[str], None],
        on_posted: Callable[[ShardId], None] = lambda _: None,
    ) -> None:
        self._rows, self._worker, self._intake = rows, worker, worker.intake
        self._tasks, self._on_broken, self._on_posted = tasks, on_broken, on_posted
        self._writing: dict[ShardId, asyncio.Event] = {}
        """Events by shard: set when the batch that is being written is done."""
        self._has_news = False

    def take_news(self) -> bool:
        """Return True if a cursor moved since the last call."""
        news, self._has_news = self._has_news, False
        return news

    async def read(self, connection: MailConnection, lease: ShardLease, cursor: Cursor) -> None:
        """Read the messages of one shard until the shard or the connection is lost."""
        try:
            while (over := self._writing.get(lease.shard)) is not None:
                await over.wait()  # for the batch of the previous connection
            async with aclosing(connection.read(lease, cursor)) as batches:
                async for batch in batches:
                    done = asyncio.get_running_loop().create_future()
                    self._writing[lease.shard] = asyncio.Event()
                    self._intake.held_back[lease.shard] = []
                    self._tasks.start(self._write(batch, done), name="ingest")
                    if not await done:
                        return
                    connection.ack(batch)  # `Pulls.acknowledge` sends it, with the next pull
        except BrokerError as exc:
            _log.debug("reading stops", extra={"shard": lease.shard, "problem": str(exc)})
            self._on_broken(str(exc))
        except Exception:  # noqa: BLE001 - an unread mailbox would be a silent loss
            _log.exception("reading broke off", extra={"shard": lease.shard})
            self._on_broken("reading broke off: see the error before")

    async def _write(self, batch: MailBatch, done: asyncio.Future[bool]) -> None:
        """Write the rows of a batch and offer them. `done` becomes True if reading can continue."""
        shard, is_written = batch.lease.shard, False
        try:
            match await self._until_written(batch):
                case Ingested(arrived, signalled, posted):
                    is_written = self._has_news = True
                    counters = self._worker.env.counters
                    counters.received += len(arrived)
                    if bad := sum(isinstance(m.content, Undecodable) for m in batch.received):
                        counters.undecodable += bad
                    for item in arrived:
                        self._intake.offer(item)
                    for run_id, agent_id in signalled:
                        self._intake.signalled(run_id, agent_id)
                    for follower_shard in posted:
                        self._on_posted(follower_shard)
                case LeaseLost():
                    self._worker.adoption.lose(shard, epoch=batch.lease.epoch)
                case StaleStream():
                    self._on_broken("the stream MAIL has a new epoch")
        except Exception:
            # Else no host would read this shard until the next connection.
            self._on_broken("messages could not be written")
            raise
        finally:
            for item in self._intake.held_back.pop(shard):
                self._intake.offer(item)
            self._writing.pop(shard).set()
            if not done.done():
                done.set_result(is_written)

    async def _until_written(self, batch: MailBatch) -> IngestOutcome:
        while True:
            try:
                return await self._rows.ingest(batch)
            except PersistenceError as exc:
                _log.warning(
                    "messages could not be written and are retried",
                    extra={"shard": batch.lease.shard, "problem": str(exc)},
                )
                await asyncio.sleep(AGAIN_S)
