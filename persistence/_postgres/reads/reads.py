"""Reads by id, and the readers of logs. Loads that are asked together become one query.

Commits of this process, and hints of others, wake readers of logs and hand them the new entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final, Generic, LiteralString, TypeVar

from pydantic_core import from_json, to_json
from typing_extensions import override

from actors._kernel.json import JsonValue, decoded, decoded_object
from actors._kernel.runtime.hints import FOLLOWED_S, FollowedLogs, LogHints
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import RESERVED, BufferedSignal, LoadedRun, RunRow, decided_seq
from actors._kernel.runtime.waits import Answer
from actors._kernel.stores.runs import (
    SMALL_STATE_BYTES,
    SMALL_STATE_KEYS,
    Handed,
    ReadStore,
    StatePart,
)
from actors.errors import PersistenceError
from persistence._postgres.commits.encode import (
    RUN_COLUMNS,
    columns,
    entry_of,
    loaded_run_of,
    run_of,
)
from persistence._postgres.connection.batch import Batched, Batcher, lookups
from persistence._postgres.connection.link import Link, Links, Row, StoreSettings
from persistence._postgres.connection.listener import Listener

ENTRY_PAGE: Final = 1000
NEW_ENTRIES: Final = 50
"""Number of entries of a followed log that are read together with others'."""
TAIL_POLL_S: Final = 0.5
FIRST_POLL_S: Final = 0.05
"""Seconds until the first poll: hosts send no hints of entries that they wrote before they knew the reader."""

SQL_LOAD_RUNS: Final[LiteralString] = (
    "select"  # noqa: S608 - constants only
    + RUN_COLUMNS
    + """, l.seqs, l.kinds, l.positions, l.payloads, l.stamps, m.arrivals, m.senders, m.bodies,
  (select p.agent from runs p where p.run_id = r.parent) as parent_agent
from runs r
left join lateral (
  select array_agg(e.seq) as seqs, array_agg(e.kind) as kinds, array_agg(e.position) as positions,
      '[' || string_agg(e.payload::text, ',') || ']' as payloads, array_agg(e.ts) as stamps
    from (select * from event_log e where e.run_id = r.run_id and e.seq >= r.log_from
      order by e.seq) e) l on true
left join lateral (
  select array_agg(i.arrival) as arrivals, array_agg(i.sender) as senders,
      '[' || string_agg(i.body::text, ',') || ']' as bodies
    from (select * from inbox i where i.run_id = r.run_id and i.state = 'b'
      order by i.arrival) i where l.seqs is null or 'run.parked' = all(l.kinds)) m on true
where r.run_id = any($1::text[])
"""
)
SQL_SIGNALS: Final[LiteralString] = """
select s.run_id, s.name, s.n, s.payload, s.message_id from signals s
  where s.run_id = any($1::text[]) and not s.consumed order by s.n
"""
SQL_ANSWERS: Final[LiteralString] = """
select c.parent, c.child, c.status, c.result, c.error, c.run, c.last_seq from completions c
  where c.parent = any($1::text[]) and not c.consumed order by c.at nulls first, c.child
"""
SQL_STATE: Final[LiteralString] = "select a.key, a.value from agent_state a where a.agent = $1"
SQL_STATE_AT: Final[LiteralString] = """
select w.i, small.yes, s.key, s.value
from unnest($1::text[], $2::text[]) with ordinality w (agent, key, i)
cross join lateral (
  select count(*) <= $3 and coalesce(sum(pg_column_size(f.value)), 0) <= $4 as yes
    from (select a.value from agent_state a where a.agent = w.agent limit $3 + 1) f) small
left join lateral (
  select a.key, a.value from agent_state a where small.yes and a.agent = w.agent
  union all
  select a.key, a.value from agent_state a
    where not small.yes and a.agent = w.agent and a.key = w.key) s on true
"""
SQL_NEW_ENTRIES: Final[LiteralString] = """
select w.i::int, e.seq, e.kind, e.position, e.payload, e.ts
  from unnest($1::text[], $2::int[]) with ordinality w(run_id, begin, i)
  cross join lateral (select * from event_log n
    where n.run_id = w.run_id and n.seq >= w.begin order by n.seq limit $3) e
  order by w.i, e.seq
"""
SQL_ENTRIES: Final[LiteralString] = """
select e.seq, e.kind, e.position, e.payload, e.ts from event_log e
  where e.run_id = $1 and e.seq >= $2 order by e.seq limit $3
"""
SQL_RUN: Final[LiteralString] = (
    "select" + RUN_COLUMNS + "from runs r where r.run_id = any($1::text[])"
)
SQL_STARTED_BY: Final[LiteralString] = "select started_by($1) as sender"
SQL_TOKENS_LEFT: Final[LiteralString] = """
select case when k.tokens < 0 then 0 else k.tokens end as tokens_left
  from (select coalesce(r.root, r.run_id) as root from runs r where r.run_id = $1) r
  cross join lateral (select coalesce(
      (select b.max_tokens - b.tokens from budgets b where b.root = r.root),
      (select (t.supervision -> 'execution_budget' ->> 'max_tokens')::bigint
        from runs t where t.run_id = r.root)) as tokens offset 0) k
"""


class Reads(ReadStore):
    """Reads by id."""

    def __init__(
        self, settings: StoreSettings, links: Links, keyed: Link, readers: LogReaders
    ) -> None:
        self._links, self._keyed, self._readers = links, keyed, readers
        limit = settings.group_limit
        self._loads = lookups(
            self._fetch_by("reading runs", SQL_LOAD_RUNS),
            lambda _, rows: loaded_run_of(rows[0]) if rows else None,
            by="run_id",
            limit=limit,
        )
        self._signals = lookups(
            self._fetch_by("reading", SQL_SIGNALS), _signals, by="run_id", limit=limit
        )
        self._answers = lookups(
            self._fetch_by("reading", SQL_ANSWERS), _answers, by="parent", limit=limit
        )
        self._states = lookups(self._fetch_states, _state, limit=limit)
        self._runs = lookups(
            self._fetch_by("reading", SQL_RUN),
            lambda _, rows: run_of(rows[0]) if rows else None,
            by="run_id",
            limit=limit,
        )
        self._new = lookups(
            self._fetch_new,
            lambda question, rows: [entry_of(question[0], row) for row in rows],
            limit=limit,
        )
        self.batchers = (
            *(self._loads, self._signals, self._answers, self._states),
            *(self._runs, self._new),
        )

    def _fetch_by(
        self, doing: str, sql: LiteralString
    ) -> Callable[[list[RunId]], Awaitable[list[Row]]]:
        """Return a function that fetches the rows of runs by a statement."""
        return partial(self._keyed.fetch, doing, sql)

    @override
    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        futures = [self._loads.call(run_id) for run_id in run_ids]
        loaded_runs = [await future for future in futures]
        return [run for run in loaded_runs if run is not None]

    @override
    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        return await self._signals.call(run_id)

    @override
    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        rows = await self._rows(SQL_STATE, str(agent_id))
        return {row["key"]: decoded(row["value"]) for row in rows}

    @override
    async def state_at(self, agent_id: AgentId, key: str) -> StatePart:
        """A value's size is what it takes on the disk."""
        return await self._states.call((str(agent_id), key))

    @override
    async def answers(self, run_id: RunId) -> list[Answer]:
        return await self._answers.call(run_id)

    async def _fetch_states(self, questions: list[tuple[str, str]]) -> list[Row]:
        sizes = (SMALL_STATE_KEYS, SMALL_STATE_BYTES)
        return await self._keyed.fetch("reading", SQL_STATE_AT, *columns(questions, 2), *sizes)

    async def _fetch_new(self, questions: list[tuple[RunId, int]]) -> list[Row]:
        """Return the rows of the first entries from these positions on."""
        return await self._keyed.fetch(
            "reading", SQL_NEW_ENTRIES, *columns(questions, 2), NEW_ENTRIES
        )

    async def _rows(self, sql: LiteralString, *args: object) -> list[Row]:
        return await self._links.fetch("reading", sql, *args)

    @override
    async def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        while True:
            rows = await self._rows(SQL_ENTRIES, run_id, from_seq, ENTRY_PAGE)
            for row in rows:
                yield entry_of(run_id, row)
            if len(rows) < ENTRY_PAGE:
                return
            from_seq = rows[-1]["seq"] + 1

    @override
    async def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Commits are seen at once; those of other processes in half a second if their hint is lost."""
        idle, was_there, news = 0, from_seq > 0, asyncio.Event()
        with self._readers.reading(run_id, from_seq) as reader:
            reader.on_news = news.set
            while True:
                news.clear()
                is_new = self._readers.tell(run_id)
                entries = reader.take()
                if reader.has_to_read and not entries:
                    reader.has_to_read = False
                    entries = await self._new.call((run_id, reader.begin))
                    reader.has_to_read |= len(entries) == NEW_ENTRIES
                for entry in entries:
                    reader.begin, idle, was_there = entry.seq + 1, 0, True
                    yield entry
                    if entry.is_terminal:
                        return
                if reader.has_to_read:
                    continue
                try:
                    async with asyncio.timeout(FIRST_POLL_S if is_new else TAIL_POLL_S):
                        await news.wait()
                except TimeoutError:
                    reader.has_to_read = True
                    if is_new:
                        continue
                    idle += 1
                    # The log may have been swept or erased. This is rare, so polls 1, 2, 4, 8, … check for it.
                    if idle.bit_count() == 1 and await self._is_over(
                        run_id, reader.begin, was_there
                    ):
                        return

    async def _is_over(self, run_id: RunId, from_seq: int, was_there: bool) -> bool:
        """Return True if no entry will follow: the log was removed, or has been read to its end."""
        row = await self.run(run_id)
        if row is None:
            return was_there
        return row.swept or (row.status.is_terminal and from_seq > row.last_seq)

    @override
    async def run(self, run_id: RunId) -> RunRow | None:
        return await self._runs.call(run_id)

    @override
    async def started_by(self, run_id: RunId) -> str | None:
        doing = "reading who started a run"
        sender: str | None = await self._links.value(doing, SQL_STARTED_BY, run_id)
        return sender

    @override
    async def tokens_left(self, run_id: RunId) -> int | None:
        rows = await self._rows(SQL_TOKENS_LEFT, run_id)
        return rows[0]["tokens_left"] if rows else None


def _signals(_: RunId, rows: list[Row]) -> list[BufferedSignal]:
    return [_signal(row) for row in rows]


def _signal(row: Row) -> BufferedSignal:
    name: str = row["name"]
    about = decided_seq(name, row["message_id"]) if name.startswith(RESERVED) else None
    return BufferedSignal(name, row["n"], decoded(row["payload"]), about)


def _answers(_: RunId, rows: list[Row]) -> list[Answer]:
    return [answer_of(row) for row in rows]


def _state(_: tuple[str, str], rows: list[Row]) -> StatePart:
    values = {row["key"]: decoded(row["value"]) for row in rows if row["key"] is not None}
    return StatePart(values, rows[0]["yes"])


def answer_of(row: Row) -> Answer:
    """Return a row of `completions`."""
    result, error = row["result"], row["error"]
    return Answer(
        run_id=RunId(row["parent"]),
        key=row["child"],
        status=row["status"],
        result=None if result is None else decoded(result),
        error=None if error is None else decoded_object(error),
        by=None if row["run"] is None else RunId(row["run"]),
        last_seq=row["last_seq"],
    )


K = TypeVar("K")
T = TypeVar("T")

MOST_HANDED: Final = 64
"""Number of entries that are kept for a slow reader of a log; it reads the log instead."""
BEGUN_S: Final = 5.0
"""Seconds for which a reader is kept for the caller who has submitted a run and begins to read it."""

SQL_SAY: Final[LiteralString] = """
select pg_notify(s.channel, s.payload) from unnest($1::text[], $2::text[]) s(channel, payload)
"""


class NotifiedLogs:
    """The `LogHints` of PostgreSQL: NOTIFY on two channels, with the name of the process and of the run.

    Args:
        settings: Name the channels and this process.
        links: Connections for the statements that notify.
        listener: The listener to other processes: always to readers of logs, to growth while readers are here.
    """

    is_connected = True

    def __init__(self, settings: StoreSettings, links: Links, listener: Listener) -> None:
        self._owner, self._links, self._listener = settings.owner, links, listener
        self._of_followed, self._of_growth = settings.followed_channel, settings.growth_channel
        self._followed_logs = FollowedLogs(asyncio.get_running_loop().time)
        self._readers: dict[RunId, Callable[[Sequence[RunLogEntry]], None]] = {}
        self._hint_batcher: Batcher[tuple[str, RunId], None] = Batcher(
            self._flush, limit=settings.group_limit
        )
        self.batchers = (self._hint_batcher,)
        listener.follow(self._of_followed, partial(self._hear, self._followed_logs.note))

    def say_followed(self, run_id: RunId) -> None:
        """Tell the other processes that this one follows a log; return at once, never raise."""
        self._say(self._of_followed, run_id)

    def follow(
        self, run_id: RunId, on_growth: Callable[[Sequence[RunLogEntry]], None]
    ) -> Callable[[], None]:
        """Call `on_growth`, without entries, when another process says that the log has grown.

        A log has one such function. Returns the function that ends the calls.
        """
        if not self._readers:
            self._listener.follow(self._of_growth, partial(self._hear, self._on_growth))
        self._readers[run_id] = on_growth

        def forget() -> None:
            del self._readers[run_id]
            if not self._readers:
                self._listener.leave(self._of_growth)

        return forget

    def takes_entries(self, run_id: RunId) -> bool:
        """Return False, because the payload of NOTIFY is too small for entries."""
        del run_id
        return False

    def announce_growth(self, run_id: RunId, entries: Sequence[RunLogEntry] = ()) -> None:
        """Tell the processes that follow the log, if one has said so lately, that it has grown."""
        del entries
        if self._followed_logs.includes(run_id):
            self._say(self._of_growth, run_id)

    def _say(self, channel: str, run_id: RunId) -> None:
        try:
            _ = self._hint_batcher.call((channel, run_id))  # nobody waits for a hint
        except PersistenceError:
            return  # the store is closed

    def _hear(self, take: Callable[[RunId], None], payload: str, _pid: int) -> None:
        """Take a hint of another process. A hint that cannot be parsed is ignored: another version sent it."""
        try:
            owner, run_id = from_json(payload)
        except ValueError:
            return
        # NOTIFY comes back to its sender, whose readers were woken by the commit already.
        if owner != self._owner:
            take(run_id)

    def _on_growth(self, run_id: RunId) -> None:
        if (on_growth := self._readers.get(run_id)) is not None:
            on_growth(())

    async def _flush(self, calls: list[Batched[tuple[str, RunId], None]]) -> None:
        hints = {call.args for call in calls}
        for call in calls:
            call.answer(None)
        channels = [channel for channel, _ in hints]
        payloads = [to_json([self._owner, run_id]).decode() for _, run_id in hints]
        await self._links.fetch("hinting that logs grew", SQL_SAY, channels, payloads)


class Begun(Generic[K, T]):
    """Readers that exist since a submit, each for the caller that will read. After `BEGUN_S` they are dropped.

    Args:
        drop: Function that ends a reader that nobody has taken.
    """

    def __init__(self, drop: Callable[[K, T], None]) -> None:
        self._drop = drop
        self._readers: dict[K, tuple[T, asyncio.TimerHandle]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._readers

    def put(self, key: K, reader: T) -> None:
        """Keep a reader. It takes the place of an earlier one."""
        self._forget(key)
        timer = asyncio.get_running_loop().call_later(BEGUN_S, self._forget, key)
        self._readers[key] = reader, timer

    def get(self, key: K) -> T | None:
        """Return a reader, and leave it there."""
        entry = self._readers.get(key)
        return None if entry is None else entry[0]

    def take(self, key: K) -> T | None:
        """Return a reader, which is then the caller's."""
        if (entry := self._readers.pop(key, None)) is None:
            return None
        entry[1].cancel()
        return entry[0]

    def _forget(self, key: K) -> None:
        if (reader := self.take(key)) is not None:
            self._drop(key, reader)


@dataclass(slots=True)
class _Log:
    """A log that has readers here.

    Attributes:
        readers: The readers here.
        hints: The hints by which other processes know of the readers and notify of new entries; None at first.
        notified_at: The instant of the last notification to the other processes.
    """

    readers: set[Handed[RunLogEntry]] = field(default_factory=set)
    hints: LogHints | None = None
    notified_at: float = 0.0
    leave: Callable[[], None] = lambda: None


class LogReaders:
    """The logs that are read in this process.

    Args:
        hints: To and from other processes.
    """

    def __init__(self, hints: LogHints) -> None:
        self._hints: tuple[LogHints, ...] = (hints,)
        self._logs: dict[RunId, _Log] = {}
        self._begun_readers = Begun(self._remove)

    def prefer(self, hints: LogHints) -> None:
        """Exchange hints by these as long as they are connected."""
        self._hints = (hints, *self._hints)

    def takes_entries(self, run_id: RunId) -> bool:
        """Return True if somebody reads a log and need not read entries that `grew` is given."""
        return run_id in self._logs or any(hints.takes_entries(run_id) for hints in self._hints)

    def grew(self, run_id: RunId, entries: Sequence[RunLogEntry] = ()) -> None:
        """Wake the readers of a log to which this process has written, here and elsewhere.

        They read the new entries if none are given.
        """
        self._hand(run_id, entries)
        for hints in self._hints:
            hints.announce_growth(run_id, entries)

    def _hand(self, run_id: RunId, entries: Sequence[RunLogEntry]) -> None:
        if (log := self._logs.get(run_id)) is not None:
            for reader in log.readers:
                reader.hand(entries)

    def begin(self, run_id: RunId) -> None:
        """Keep the entries of a run for its first reader.

        The run was submitted just now, and this process executes it: no entry was written before.
        """
        reader = self._add(run_id, 0)
        reader.has_to_read = False
        self._begun_readers.put(run_id, reader)

    @contextmanager
    def begun(self, run_id: RunId) -> Iterator[Handed[RunLogEntry] | None]:
        """Yield the reader that `begin` has kept, if there is one."""
        reader = self._begun_readers.take(run_id)
        try:
            yield reader
        finally:
            if reader is not None:
                self._remove(run_id, reader)

    @contextmanager
    def reading(self, run_id: RunId, begin: int) -> Iterator[Handed[RunLogEntry]]:
        """Yield a reader of a log from a seq on, which is woken when the log has grown."""
        reader = self._add(run_id, begin)
        try:
            yield reader
        finally:
            self._remove(run_id, reader)

    def _add(self, run_id: RunId, begin: int) -> Handed[RunLogEntry]:
        reader = Handed[RunLogEntry](attrgetter("seq"), begin, MOST_HANDED)
        self._logs.setdefault(run_id, _Log()).readers.add(reader)
        return reader

    def _remove(self, run_id: RunId, reader: Handed[RunLogEntry]) -> None:
        log = self._logs[run_id]
        log.readers.discard(reader)
        if not log.readers:
            del self._logs[run_id]
            log.leave()

    def tell(self, run_id: RunId) -> bool:
        """Tell other processes now and then that a log is read here; return True the first time."""
        log, now = self._logs[run_id], asyncio.get_running_loop().time()
        active_hints = next(hints for hints in self._hints if hints.is_connected)
        is_new = log.hints is not active_hints
        if is_new:
            log.leave()
            log.hints, log.leave = (
                active_hints,
                active_hints.follow(run_id, partial(self._hand, run_id)),
            )
        if is_new or now - log.notified_at > FOLLOWED_S / 3:
            active_hints.say_followed(run_id)
            log.notified_at = now
        return is_new
