"""RunStore on PostgreSQL: one committer, one connection for arrivals, a few for reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from actors._kernel.histogram import Histogram
from actors._kernel.runtime.hints import LogHints, Nudge
from actors._kernel.stores.artifacts import ArtifactBytes
from actors._kernel.stores.run_store import DataStores, RunStore
from actors.errors import PersistenceError
from persistence._background import background
from persistence._postgres.administration.erasure import PostgresErasure, Retention
from persistence._postgres.administration.operators import Operators
from persistence._postgres.administration.tables import (
    PostgresAudit,
    PostgresFlowBundles,
    PostgresRunSnapshots,
    PostgresTokens,
    PostgresUsage,
)
from persistence._postgres.commits.committer import Committer
from persistence._postgres.commits.outcomes import HandOver
from persistence._postgres.connection.link import KEYED, Link, Links, ServerOutage, StoreSettings
from persistence._postgres.connection.listener import Listener, PostgresClock, Reading
from persistence._postgres.conversations.fact_readers import FactReaders, PostgresFollowedRuns
from persistence._postgres.conversations.sessions import PostgresSessionDirectory, PostgresSessions
from persistence._postgres.conversations.transcripts import Transcripts
from persistence._postgres.data.artifacts import PostgresArtifacts
from persistence._postgres.mail.arrivals import Arrivals
from persistence._postgres.mail.mail import Mail, Outbox
from persistence._postgres.reads.insight import Insight
from persistence._postgres.reads.lists import Lists
from persistence._postgres.reads.reads import LogReaders, NotifiedLogs, Reads
from persistence._postgres.sharding.backlog import PostgresBacklog
from persistence._postgres.sharding.ownership import ShardLeases
from persistence._postgres.topics.follows import Follows
from persistence._postgres.topics.schedules import PostgresLimits, PostgresSchedules

if TYPE_CHECKING:
    from actors._kernel.stores.administration import ErasureStore
    from actors._kernel.stores.conversations import SessionDirectory
    from actors._kernel.stores.memory import LongTermMemories
    from persistence._postgres.data.boards import PgTaskBoards

_log = logging.getLogger("callboard.postgres")

TIME_EVERY_S: Final = 10.0
"""Age that the database's time may reach without heartbeats, in seconds."""


class PostgresStore(RunStore):
    """A `RunStore` in PostgreSQL. Its roles share connections; calls wait while the server is away.

    Made by `open_postgres_store`.
    """

    follows: Follows
    posts: Follows
    schedules: PostgresSchedules
    limits: PostgresLimits

    def __init__(
        self,
        settings: StoreSettings,
        clock: PostgresClock,
        *,
        is_behind: bool = False,
        artifact_bytes: ArtifactBytes | None = None,
    ) -> None:
        self.settings = settings
        self.is_behind = is_behind
        """True if it began without a migration that hosts can start without: see `catch_up_beside_work`."""
        self.clock = clock
        """The database's time, for all that is compared with rows."""
        self._outage = outage = ServerOutage(settings)
        self._links = links = Links(settings, outage, settings.readers)
        # One for each use: a slow statement of one does not hold up the others.
        self._keyed = [Link(settings, outage, KEYED) for _ in range(6)]
        self._keyed_links = keyed_links = Links(settings, outage, settings.readers, KEYED)
        (
            reading_link,
            arriving_link,
            answering_link,
            mailing_link,
            following_link,
            expanding_link,
        ) = self._keyed
        artifacts = PostgresArtifacts(links, artifact_bytes)
        # Rows, so that no host needs a bucket to read a conversation.
        large_turns = PostgresArtifacts(links)
        self._listener = listener = Listener(settings, outage)
        notified_logs = NotifiedLogs(settings, links, listener)
        self._log_readers = log_readers = LogReaders(notified_logs)
        self.reads: Reads = Reads(settings, links, reading_link, log_readers)
        self.lists: Lists = Lists(links, answering_link)
        transcripts = Transcripts(links, large_turns.of)
        self._fact_readers = readers = FactReaders(
            reading_link, listener, settings.sessions_channel
        )
        sessions = PostgresSessions(links, keyed_links, transcripts, readers)
        self.arrivals: Arrivals = Arrivals(
            settings,
            links,
            arriving_link,
            answering_link,
            reads=self.reads,
            on_session=readers.wake,
        )
        self.followed: PostgresFollowedRuns = PostgresFollowedRuns(log_readers, readers)
        self.arrivals.on_begun = self.followed.begin
        self.commits: Committer = Committer(
            settings,
            outage,
            hand_over=HandOver(
                log_readers.takes_entries, readers.has, log_readers.grew, readers.wake
            ),
            on_foreign=self.arrivals.nudge,
            artifacts_of=large_turns.of,
        )
        readers.writers = (arriving_link, self.commits.link)
        self.shards: ShardLeases = ShardLeases(settings, links, clock)
        self.backlog: PostgresBacklog = PostgresBacklog(links, answering_link, clock)
        self.operators: Operators = Operators(settings.owner, links, answering_link, self.reads)
        self.retention: Retention = Retention(settings.owner, links, artifacts.remove_objects)
        self.insight: Insight = Insight(settings, links)
        self.follows = self.posts = follows = Follows(
            settings, links, following_link, expanding_link
        )
        self.schedules, self.limits = PostgresSchedules(settings, links), PostgresLimits(links)
        self.data: PostgresDataStores = PostgresDataStores(
            links, transcripts, sessions, artifacts, retention=self.retention
        )
        self.mail: Mail = Mail(settings, links, mailing_link, on_foreign=self.arrivals.nudge)
        self.outbox: Outbox = Outbox(links, self.commits, limit=settings.group_limit)
        self.group_size: Histogram = self.commits.group_size
        """Histogram of the number of commits that were committed together."""
        outage.on_new_incarnation = self._on_new_incarnation
        self._batchers = (
            *self.reads.batchers,
            *self.lists.batchers,
            *sessions.batchers,
            *readers.batchers,
            *self.arrivals.batchers,
            *self.mail.batchers,
            *self.outbox.batchers,
            *follows.batchers,
            *notified_logs.batchers,
        )

    @cached_property
    def boards(self) -> PgTaskBoards:
        """The boards of all tenants."""
        from persistence._postgres.data.boards import PgTaskBoards  # noqa: PLC0415 - few use it

        return PgTaskBoards(self._keyed_links)

    @property
    def trouble(self) -> str | None:
        """The reason why the server takes nothing although it answers, such as a full disk; None if it does."""
        return self._outage.trouble

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work while the block lasts; queued writes are finished at its end, within 10 seconds."""
        try:
            async with background(
                [self._listener.run, self._fact_readers.run],
                [self.commits.run, *(batcher.run for batcher in self._batchers)],
                stop=self._stop,
            ):
                yield
        finally:
            for link in self._keyed:
                await link.close()
            await self._links.close()
            await self._keyed_links.close()

    def _on_new_incarnation(self) -> None:
        """Have what this host remembers of rows read again: first, so that it begins nothing by it."""
        _log.warning(
            "PostgreSQL was started anew, or another server took its place: all rows are read again",
            extra={"owner": self.settings.owner},
        )
        self._listener.publish(Nudge("incarnation"))
        self.commits.refuse_beginnings()

    def _stop(self) -> None:
        self.commits.close()
        for batcher in self._batchers:
            batcher.close()

    async def keep_time(self) -> None:
        """Ask for the database's time now and then, until cancelled; for who sends no heartbeats."""
        while True:
            await asyncio.sleep(TIME_EVERY_S)
            asked_at = self.clock.monotonic()
            try:
                now = await self.schedules.now()
            except PersistenceError as exc:
                _log.debug("the database's time could not be read; trying again", exc_info=exc)
            else:
                self.clock.observe(Reading(now, asked_at, self.clock.monotonic()))

    @override
    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        self._listener.hook = hook

    @override
    def prefer_log_hints(self, hints: LogHints) -> None:
        self._log_readers.prefer(hints)

    async def listening(self) -> None:
        """Return once hints of other processes are heard."""
        await self._listener.listening.wait()


class PostgresDataStores(DataStores):
    """Stores beside the runs, in the same database."""

    def __init__(
        self,
        links: Links,
        transcripts: Transcripts,
        sessions: PostgresSessions,
        artifacts: PostgresArtifacts,
        *,
        retention: Retention,
    ) -> None:
        self._links, self._retention = links, retention
        self.transcripts, self.sessions, self.artifacts = transcripts, sessions, artifacts
        self.tokens, self.audit, self.usage = (
            PostgresTokens(links),
            PostgresAudit(links),
            PostgresUsage(links),
        )
        self.flow_bundles, self.run_snapshots = (
            PostgresFlowBundles(links),
            PostgresRunSnapshots(links),
        )

    @cached_property
    @override
    def memories(self) -> LongTermMemories:  # type: ignore[override]  # nobody sets it
        from persistence._postgres.data.memories import PostgresLongTermMemories  # noqa: PLC0415 - few use it

        return PostgresLongTermMemories(self._links)

    @cached_property
    @override
    def directory(self) -> SessionDirectory:  # type: ignore[override]  # nobody sets it
        return PostgresSessionDirectory(self._links)

    @cached_property
    @override
    def erasure(self) -> ErasureStore:  # type: ignore[override]  # nobody sets it
        return PostgresErasure(self._links, self._retention, self.artifacts.remove_objects)
