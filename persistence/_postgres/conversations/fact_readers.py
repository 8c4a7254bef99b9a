"""Readers that wait for facts of sessions: one look for all of them in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Final, LiteralString

from typing_extensions import override

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.stores.conversations import SessionFact
from actors._kernel.stores.runs import FollowedRuns, Handed
from actors.errors import ActorsError
from persistence._postgres.connection.batch import lookups
from persistence._postgres.connection.link import Link, Row
from persistence._postgres.connection.listener import Listener
from persistence._postgres.reads.reads import Begun, LogReaders

_log = logging.getLogger("callboard.postgres")

POLL_S: Final = 0.5
"""Seconds between two polls of the sessions that are followed here, with or without notifications."""
SAY_EVERY: Final = 20
"""Number of polls after which other processes are notified again of the sessions that are followed here."""

WATCHED_S: Final = 20.0
"""Seconds before `watched_until` of a followed session is written again; a written value holds 30 s or more."""
MOST_WATCHED: Final = 10_000
"""Number of sessions for which the last write of `watched_until` is remembered."""

MOST_QUEUED: Final = 1_000
"""Number of facts of submits that are kept for the callers of these submits."""
MOST_HANDED: Final = 256
"""Number of facts that are kept for a slow reader; it reads them instead."""

SQL_POLL_SESSIONS: Final[LiteralString] = """
select s.agent, s.last_fact from sessions s where s.agent = any($1::text[])
"""
SQL_WATCH_SESSION: Final[LiteralString] = """
with written as (
  update sessions set watched_until = clock_timestamp() + interval '60 s'
    where agent = $1 and coalesce(watched_until < clock_timestamp() + interval '30 s', true))
select 1 as i from sessions s where s.agent = $1
"""
"""A row if the session is there."""
SQL_WATCH_SESSIONS: Final[LiteralString] = """
update sessions set watched_until = clock_timestamp() + interval '60 s'
  where ctid = any(array(select s.ctid from sessions s
    where s.agent = any($1::text[]) and coalesce(s.watched_until < clock_timestamp() + interval '30 s', true)
    for no key update skip locked))
"""
"""Skips a session whose row another transaction has locked: the next call sets its `watched_until`."""


class FactReaders:
    """Readers of this process that wait for the next fact of a session.

    Args:
        link: A connection for statements that find rows by keys.
        listener: The listener to other processes' writes, used while there are readers.
        channel: The channel of their notifications.

    Attributes:
        writers: Connections whose notifications are ignored. Who writes by them calls `wake`.
    """

    def __init__(self, link: Link, listener: Listener, channel: str) -> None:
        self._link, self._listener, self._channel = link, listener, channel
        self.writers: tuple[Link, ...] = ()
        self._waiting_readers: dict[AgentId, set[Handed[SessionFact]]] = {}
        self._queued_facts: dict[tuple[AgentId, RunId], SessionFact] = {}
        self._begun_readers: Begun[AgentId, Handed[SessionFact]] = Begun(lambda _, __: None)
        self._has_readers = asyncio.Event()
        self._watched_at: dict[AgentId, float] = {}
        self._watches = lookups(self._write_watched, lambda _, rows: bool(rows), limit=1)
        self.batchers = (self._watches,)

    async def _write_watched(self, agents: list[AgentId]) -> list[Row]:
        """Write for one session: the statement waits for the lock of that row, and holds no other meanwhile."""
        [agent] = agents
        return await self._link.fetch("following a session", SQL_WATCH_SESSION, str(agent))

    def has(self, agent: AgentId) -> bool:
        """Return True if a session has readers."""
        return agent in self._waiting_readers or agent in self._begun_readers

    def begin(self, agent: AgentId, fact: SessionFact) -> None:
        """Keep the facts of a session from that of a submit on, for the caller of the last submit.

        This process executes the run: it writes the facts that follow. Those of others are found by a poll.
        """
        reader = _reader(fact.number)
        reader.has_to_read = False
        reader.hand((fact,))
        self._begun_readers.put(agent, reader)

    def wake(self, agent: AgentId, facts: Sequence[SessionFact] = ()) -> None:
        """Hand new facts to the readers of a session; none: they read them."""
        for fact in facts:
            if fact.kind == "queued":
                self._queued_facts[agent, fact.run_id] = fact
                if len(self._queued_facts) > MOST_QUEUED:
                    del self._queued_facts[next(iter(self._queued_facts))]
        for reader in self._waiting_readers.get(agent, ()):
            reader.hand(facts)
        if (begun_reader := self._begun_readers.get(agent)) is not None:
            begun_reader.hand(facts)

    def forget(self, agent: AgentId) -> None:
        """Drop the facts that are kept for callers of submits: the session is being deleted.

        A deletion in another process is not known here. A caller that begins to read its run within
        `BEGUN_S` gets what was kept for it.
        """
        self._begun_readers.take(agent)
        for key in [key for key in self._queued_facts if key[0] == agent]:
            del self._queued_facts[key]

    def take_queued(self, agent: AgentId, run_id: RunId) -> SessionFact | None:
        """Return, once, the fact that a run was submitted if this process has submitted it lately."""
        return self._queued_facts.pop((agent, run_id), None)

    def _hear(self, payload: str, pid: int) -> None:
        if not any(link.is_of(pid) for link in self.writers):
            self.wake(AgentId.parse(payload))

    @contextmanager
    def begun(self, agent: AgentId, after: int) -> Iterator[Handed[SessionFact] | None]:
        """Yield the reader that `begin` has kept, if it continues after this fact."""
        reader = self._begun_readers.get(agent)
        if reader is None or reader.begin != after + 1:
            yield None
            return
        self._begun_readers.take(agent)
        with self._waits(agent, reader):
            yield reader

    @contextmanager
    def waiting(self, agent: AgentId, after: int) -> Iterator[Handed[SessionFact]]:
        """Yield a reader, which is woken when the session has facts after the last one that it has read."""
        reader = _reader(after + 1)
        with self._waits(agent, reader):
            yield reader

    @contextmanager
    def _waits(self, agent: AgentId, reader: Handed[SessionFact]) -> Iterator[None]:
        if not self._waiting_readers:
            self._listener.follow(self._channel, self._hear)
            self._has_readers.set()
        readers = self._waiting_readers.setdefault(agent, set())
        readers.add(reader)
        try:
            yield
        finally:
            readers.discard(reader)
            if not readers:
                del self._waiting_readers[agent]
            if not self._waiting_readers:
                self._has_readers.clear()
                self._listener.leave(self._channel)

    async def watch(self, agent: AgentId, *, is_there: bool = False) -> bool:
        """Have all processes notify of new facts of a session, as long as it has readers here.

        Of one that is known to be there this is written once for a while, however many readers it has in turn.
        Return True if it was: facts that were written before may have come without a hint.
        """
        now = asyncio.get_running_loop().time()
        if now - self._watched_at.get(agent, -inf) < WATCHED_S:
            return False
        was_there = await self._watches.call(agent)
        if is_there or was_there:
            # To the end of the order, so that the session that was watched longest ago is forgotten first.
            self._watched_at.pop(agent, None)
            self._watched_at[agent] = now
            if len(self._watched_at) > MOST_WATCHED:
                del self._watched_at[next(iter(self._watched_at))]
        return True

    async def run(self) -> None:
        """Poll for facts without a notification, in one statement for all sessions, until cancelled."""
        poll_count = 0
        while True:
            await self._has_readers.wait()
            await asyncio.sleep(POLL_S)
            poll_count += 1
            try:
                await self.poll(say=poll_count % SAY_EVERY == 0)
            except ActorsError as exc:
                _log.debug("sessions that are followed could not be looked at", exc_info=exc)
                for agent in self._waiting_readers:  # a caller that reads for itself has the error
                    self.wake(agent)

    async def poll(self, *, say: bool) -> None:
        """Wake readers that have facts to read; with `say` notify the other processes first."""
        agents = [str(agent) for agent in self._waiting_readers]
        if say:
            await self._link.fetch("following sessions", SQL_WATCH_SESSIONS, agents)
        for row in await self._link.fetch("following sessions", SQL_POLL_SESSIONS, agents):
            for reader in self._waiting_readers.get(AgentId.parse(row["agent"]), ()):
                if row["last_fact"] >= reader.begin:
                    reader.hand(())


class PostgresFollowedRuns(FollowedRuns):
    """The `FollowedRuns` of PostgreSQL.

    Args:
        logs: The readers of logs.
        facts: The readers of sessions.
    """

    def __init__(self, logs: LogReaders, facts: FactReaders) -> None:
        self._logs, self._facts = logs, facts

    def begin(self, agent: AgentId, queued_fact: SessionFact) -> None:
        """Keep facts and entries of a submitted run for its first reader: see `NewSession.is_followed`."""
        self._facts.begin(agent, queued_fact)
        self._logs.begin(queued_fact.run_id)

    @override
    def entries_of(self, run_id: RunId) -> AbstractContextManager[Handed[RunLogEntry] | None]:
        return self._logs.begun(run_id)

    @override
    def facts_of(
        self, agent: AgentId, *, after: int
    ) -> AbstractContextManager[Handed[SessionFact] | None]:
        return self._facts.begun(agent, after)


def _reader(begin: int) -> Handed[SessionFact]:
    return Handed(lambda fact: fact.number, begin, MOST_HANDED)
