"""Live events of runs: what models and agents say, of this process and by a bus of others. Never stored.

`LiveEvents` has the readers of this process. Each has a `Feed`, and `PieceOrder` puts its pieces between the
entries of the log. For one who joins in the middle of an answer, `OpenAnswers` has what was said here so far,
and `CatchUp` puts the pieces of other processes in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

from actors._kernel.basics import Clock
from actors._kernel.json import JsonValue, fresh
from actors._kernel.runtime.effects import GRAPH
from actors._kernel.runtime.hints import Delta, DeltaBus
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind, RunLogEntry
from actors._kernel.stores.run_store import RunStore
from actors._runtime.loop.tasks import Pulled, TaskScope

MAX_DELTAS: Final = 10_000
"""Maximum number of pieces kept for a slow reader; the oldest are dropped, and the run is never slowed."""
MAX_ENTRIES: Final = 256
"""Number of entries that are read ahead of a slow reader; further entries stay in the log."""
QUIET_S: Final = 0.5
"""Seconds without an entry after which the log of a run that began here is read: others may write it."""


@dataclass(frozen=True, slots=True)
class LivePiece(RunLogEntry):
    """A piece of a live answer, as an entry with the seq -1.

    Attributes:
        after: Where the log ended when the answer began, as in `Delta.after`.
        shared: Values that one of the piece's readers has made of it, for the others.
    """

    after: int | None = None
    shared: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)


class LiveEvents:
    """The readers of runs in this process.

    Args:
        clock: The clock for the arrival of pieces.
        store: The store, which knows the agent of a run.

    Attributes:
        bus: The bus to and from other processes, or None without one: see `join`.
    """

    def __init__(self, clock: Clock, store: RunStore) -> None:
        self._clock, self._store = clock, store
        self._readers: dict[RunId, set[Feed]] = {}
        self.open_answers: OpenAnswers = OpenAnswers()
        self.bus: DeltaBus | None = None

    def join(self, bus: DeltaBus) -> None:
        """Exchange pieces and ends with other processes from now on."""
        self.bus = bus
        bus.answer_by(self._answers_of)

    def publish(self, delta: Delta) -> None:
        """Pass a piece to all listeners, on this host and others; return at once."""
        self.open_answers.add(delta)
        if readers := self._readers.get(delta.run_id):
            piece = self._entry(delta)
            for feed in readers:
                feed.add_delta(piece)
        if self.bus is not None:
            self.bus.publish(delta)

    def announce_end(self, agent_id: AgentId, run_id: RunId) -> None:
        """Notify waiters on other hosts that a run has ended here."""
        if self.bus is not None:
            self.bus.announce_end(agent_id, run_id)

    def watch_end(
        self, agent_id: AgentId, run_id: RunId, on_end: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `on_end` when another host says that the run has ended; return what stops the watch."""
        return (lambda: None) if self.bus is None else self.bus.watch_end(agent_id, run_id, on_end)

    @property
    def hears_ends(self) -> bool:
        """True if ends on other hosts are announced here at the moment."""
        return self.bus is not None and self.bus.is_connected

    async def merge(
        self,
        run_id: RunId,
        log: AsyncIterator[RunLogEntry],
        *,
        whole: bool = False,
        after: int = -1,
    ) -> AsyncGenerator[RunLogEntry, None]:
        """Yield the log's entries and, between them as they come, live ones; these have seq -1.

        A piece of a call whose result was yielded already is left out. With `whole` the first piece of an
        answer that is under way, here or on another host, is all of it so far, and says so (``whole``). Then
        an answer's pieces also come after the entries that were written before it began.

        Args:
            run_id: The run.
            log: Its entries.
            whole: See above.
            after: Seq of the entry before the log's first one.
        """
        async with self.reading(run_id, log, whole=whole, after=after) as merged_log:
            while True:
                await merged_log.until_next()
                try:
                    items = await merged_log.take()
                except StopAsyncIteration:
                    return
                # A copy for each reader: all readers of a run share its pieces.
                for item in items:
                    is_piece = isinstance(item, LivePiece)
                    yield replace(item, payload=fresh(item.payload)) if is_piece else item

    @asynccontextmanager
    async def reading(
        self,
        run_id: RunId,
        log: AsyncIterator[RunLogEntry],
        *,
        pieces: bool = True,
        whole: bool = False,
        after: int = -1,
        news: asyncio.Event | None = None,
    ) -> AsyncIterator[MergedLog]:
        """Yield what `merge` yields, for a reader that also waits for something else.

        Args:
            run_id: The run.
            log: Its entries.
            pieces: False to yield only the entries.
            whole: As for `merge`.
            after: Seq of the entry before the log's first one.
            news: Is set when there is something to take. It may be set for other reasons, too.
        """
        feed = Feed(news)
        order = PieceOrder(partial(self._last_seq, run_id) if whole else None, after)
        async with TaskScope() as scope, self._entries(run_id, log, feed, scope, after=after):
            if not pieces:
                yield MergedLog(feed, order)
                return
            for delta in self.open_answers.of(run_id) if whole else ():
                feed.add_delta(self._entry(delta))
            readers = self._readers.setdefault(run_id, set())
            readers.add(feed)
            try:
                if self.bus is not None:
                    reading = self._read_bus(self.bus, run_id, feed, whole=whole)
                    scope.start(reading, name=f"live {run_id}")
                yield MergedLog(feed, order)
            finally:
                readers.discard(feed)
                # Another reader may have come after this set was removed, and has a set of its own.
                if not readers and self._readers.get(run_id) is readers:
                    del self._readers[run_id]

    @asynccontextmanager
    async def _entries(
        self,
        run_id: RunId,
        log: AsyncIterator[RunLogEntry],
        feed: Feed,
        scope: TaskScope,
        *,
        after: int,
    ) -> AsyncIterator[None]:
        """Add the entries of a log to a feed, those of a run that began here without a task."""
        reads, followed_runs = self._store.reads, self._store.followed if after < 0 else None
        with (
            nullcontext()
            if followed_runs is None
            else followed_runs.entries_of(run_id) as handed_entries
        ):

            def read() -> None:
                entries = (
                    log
                    if handed_entries is None
                    else reads.tail(run_id, from_seq=handed_entries.begin)
                )
                scope.start(_read_log(entries, feed), name=f"tail {run_id}")

            if handed_entries is None:
                read()
            else:
                feed.pulled = Pulled(handed_entries, feed.news, read, quiet_s=QUIET_S)
            try:
                yield
            finally:
                if feed.pulled is not None:
                    feed.pulled.close()

    async def _last_seq(self, run_id: RunId) -> int:
        row = await self._store.reads.run(run_id)
        return -1 if row is None else row.last_seq

    def _answers_of(self, agent_id: AgentId, run_id: RunId) -> list[Delta]:
        """Return the answers of a run that are under way here, if it is one of this agent."""
        return [delta for delta in self.open_answers.of(run_id) if delta.agent_id == agent_id]

    async def _read_bus(self, bus: DeltaBus, run_id: RunId, feed: Feed, *, whole: bool) -> None:
        row = await self._store.reads.run(run_id)
        if row is None:
            return

        def show(delta: Delta) -> None:
            feed.add_delta(self._entry(delta))

        pieces = bus.subscribe(row.agent_id, run_id, whole=whole)
        async with aclosing(pieces), CatchUp(show) as catch_up:
            async for delta in pieces:
                if whole:
                    catch_up.take(delta)
                elif delta is not None:
                    show(delta)

    def _entry(self, delta: Delta) -> LivePiece:
        payload: dict[str, JsonValue] = {"text": delta.text, "attempt": delta.attempt, "n": delta.n}
        if delta.data is not None:
            payload["data"] = delta.data
        if delta.is_whole:
            payload["whole"] = True
        now = self._clock.now()
        identity = delta.run_id, -1, delta.kind, delta.position
        return LivePiece(*identity, payload, now, after=delta.after)


async def _read_log(log: AsyncIterator[RunLogEntry], feed: Feed) -> None:
    try:
        async for entry in log:
            await feed.add_entry(entry)
        feed.end(None)
    except Exception as exc:  # noqa: BLE001 - raised to the reader, which is another task
        feed.end(exc)


class PieceOrder:
    """The order of one reader's entries and pieces.

    Args:
        last_seq: Function that returns where the log ends, or None if pieces do not wait for entries.
        seen: Seq of the last entry that the reader has.
    """

    def __init__(self, last_seq: Callable[[], Awaitable[int]] | None, seen: int) -> None:
        self._last_seq, self._seen_seq, self._needed_seq = last_seq, seen, seen
        self._begun_positions: set[str] = set()
        self._done_positions: set[str] = set()
        self._waiting_pieces: deque[RunLogEntry] = deque(maxlen=MAX_DELTAS)

    async def take(self, item: RunLogEntry) -> list[RunLogEntry]:
        """Return what comes next: an entry, and pieces that waited for it; or a piece, if it need not wait."""
        if item.seq < 0:
            return await self._piece(item)
        self._seen_seq, next_items = item.seq, [item]
        is_graph = item.kind == EntryKind.EFFECT_RESULT and item.payload.get("effect") == GRAPH
        if item.kind == EntryKind.LLM_CALL or is_graph:
            if item.payload.get("status") == "ok":
                self._done_positions.add(item.position)
            # The pieces of this position wait no more.
            pieces = [piece for piece in self._waiting_pieces if piece.position == item.position]
            other_pieces = (
                piece for piece in self._waiting_pieces if piece.position != item.position
            )
            self._waiting_pieces, next_items = deque(other_pieces, MAX_DELTAS), [*pieces, item]
        elif item.kind in {EntryKind.RUN_ATTEMPT_FAILED, EntryKind.RUN_CONTINUED}:
            self._done_positions.clear()  # the same positions are asked again
        if self._seen_seq >= self._needed_seq:
            next_items += [
                piece
                for piece in self._waiting_pieces
                if piece.position not in self._done_positions
            ]
            self._waiting_pieces.clear()
        return next_items

    async def _piece(self, item: RunLogEntry) -> list[RunLogEntry]:
        """Return a piece, unless it waits.

        The first piece of an answer says where the log ended, or it is read. An entry up to there may say that
        this position is asked again. A failed call says nothing of the kind: the attempt that follows asks
        there, and its pieces may come before the entry that begins it.
        """
        begins = item.payload["n"] == 0 or item.position not in self._begun_positions
        if self._last_seq is not None and begins:
            self._begun_positions.add(item.position)
            after = item.after if isinstance(item, LivePiece) else None
            self._needed_seq = max(
                self._needed_seq, await self._last_seq() if after is None else after
            )
        if self._seen_seq < self._needed_seq:
            self._waiting_pieces.append(item)
            return []
        return [] if item.position in self._done_positions else [item]


class MergedLog:
    """The entries of a log with the pieces between them, as `LiveEvents.reading` makes it for one reader."""

    def __init__(self, feed: Feed, order: PieceOrder) -> None:
        self._feed, self._order = feed, order

    def has_next(self) -> bool:
        """Return True if `take` need not wait for the run."""
        return self._feed.has_next()

    async def until_next(self) -> None:
        """Wait until `take` need not wait for the run."""
        await self._feed.until_next()

    async def take(self) -> list[RunLogEntry]:
        """Return the next entries and pieces, perhaps none, once `has_next`.

        Raises:
            StopAsyncIteration: The last entry was taken.
            Exception: What kept the log from being read.
        """
        item = self._feed.take()
        if item is None:
            raise StopAsyncIteration
        return await self._order.take(item)


class Feed:
    """The queue of one reader. Entries wait for the reader, pieces do not.

    Attributes:
        news: Event that is set when there is something to take.
        pulled: Entries that commits hand over and no task adds, or None.
    """

    def __init__(self, news: asyncio.Event | None = None) -> None:
        self._items: deque[RunLogEntry] = deque()
        self._deltas = 0
        self._is_over = False
        self._error: Exception | None = None
        self.news = news or asyncio.Event()
        self._has_slot = asyncio.Event()
        self.pulled: Pulled[RunLogEntry] | None = None

    def _pull(self) -> None:
        """Take the entries that were handed over, before whatever comes next."""
        if self.pulled is None or len(self._items) - self._deltas >= MAX_ENTRIES:
            return
        for entry in self.pulled.take():
            self._items.append(entry)
            if entry.is_terminal:
                self.pulled.close()
                self._is_over = True

    def add_delta(self, delta: RunLogEntry) -> None:
        """Add a piece; of too many the oldest goes."""
        self._pull()
        if self._deltas >= MAX_DELTAS:
            oldest = next(i for i, item in enumerate(self._items) if item.seq < 0)
            del self._items[oldest]
            self._deltas -= 1
        self._items.append(delta)
        self._deltas += 1
        self.news.set()

    async def add_entry(self, entry: RunLogEntry) -> None:
        """Add an entry of the log once the queue has a free slot."""
        while len(self._items) - self._deltas >= MAX_ENTRIES:
            self._has_slot.clear()
            await self._has_slot.wait()
        self._items.append(entry)
        self.news.set()

    def end(self, error: Exception | None) -> None:
        """Note that the log has ended, or could not be read."""
        self._is_over, self._error = True, error
        self.news.set()

    def has_next(self) -> bool:
        """Return True if there is something to take, or the log has ended."""
        self._pull()
        return bool(self._items) or self._is_over

    async def until_next(self) -> None:
        """Wait until `has_next`."""
        while not self.has_next():
            self.news.clear()
            await self.news.wait()

    def take(self) -> RunLogEntry | None:
        """Return the next entry or piece, once `has_next`, or None after the last entry.

        Raises:
            Exception: What kept the log from being read.
        """
        if not self._items:
            if self._error is not None:
                raise self._error
            return None
        item = self._items.popleft()
        if item.seq < 0:
            self._deltas -= 1
        self._has_slot.set()
        return item


HOLD_S: Final = 1.0
"""Seconds that pieces after a gap wait for the whole answer, which an old host, or a dead one, never sends."""


class CatchUp:
    """Shows each piece once, in order: pieces after a gap are shown when the text before them has come.

    Args:
        show: Called with the next piece.
    """

    def __init__(self, show: Callable[[Delta], None]) -> None:
        self._show = show
        self._next: dict[str, tuple[int, int]] = {}
        """Attempt and number of the next piece, by the position of the model call."""
        self._waiting_pieces: list[Delta] = []
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop()

    def take(self, delta: Delta | None) -> None:
        """Show a piece, hold it, or drop it if it was shown. None says that the whole answers are there."""
        if delta is None:
            self._release()
        elif delta.kind == "custom.delta":
            self._show(delta)
        else:
            number, next_number = (delta.attempt, delta.n), self._next_number(delta)
            if delta.n == 0 and not delta.is_whole:
                self._waiting_pieces = [
                    piece for piece in self._waiting_pieces if piece.position != delta.position
                ]
                self._show_next(delta)
            elif number == next_number or (delta.is_whole and number > next_number):
                self._show_next(delta)
            elif number > next_number:
                self._waiting_pieces.append(delta)
                if self._timer is None:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(HOLD_S, self._release)

    def _next_number(self, delta: Delta) -> tuple[int, int]:
        return self._next.get(delta.position, (0, 0))

    def _show_next(self, delta: Delta) -> None:
        self._next[delta.position] = (delta.attempt, delta.n + 1)
        self._show(delta)

    def _release(self) -> None:
        self._stop()
        waiting_pieces, self._waiting_pieces = self._waiting_pieces, []
        for delta in waiting_pieces:
            if (delta.attempt, delta.n) >= self._next_number(delta):
                self._show_next(delta)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


MAX_BYTES: Final = 256 * 1024
"""Largest answer that is kept, as UTF-8. A reader that joins a longer one sees only its later pieces."""


@dataclass(slots=True)
class _Text:
    last: Delta
    pieces: list[str] = field(default_factory=list)
    size: int = 0


class OpenAnswers:
    """The texts so far of model calls that execute here, by run and position."""

    def __init__(self) -> None:
        self._runs: dict[RunId, dict[tuple[str, str], _Text]] = {}

    def add(self, delta: Delta) -> None:
        """Add a piece of a model's answer or reasoning. One that begins at 0 again voids those before it."""
        if delta.kind == "custom.delta":
            return
        texts = self._runs.get(delta.run_id)
        if texts is None:
            texts = self._runs[delta.run_id] = {}
        key = (delta.position, delta.kind)
        answer = texts.get(key)
        if answer is None or delta.n == 0:
            answer = texts[key] = _Text(delta)
        answer.last = delta
        answer.size += len(delta.text.encode("utf-8", "surrogatepass"))
        if answer.size <= MAX_BYTES:
            answer.pieces.append(delta.text)
        else:
            answer.pieces.clear()

    def close(self, run_id: RunId, position: str) -> None:
        """Forget the call at a position: its result is recorded, or it is tried again later."""
        texts = self._runs.get(run_id)
        if texts is None:
            return
        for kind in ("text.delta", "reasoning.delta"):
            texts.pop((position, kind), None)
        if not texts:
            del self._runs[run_id]

    def of(self, run_id: RunId) -> list[Delta]:
        """Return each answer of a run so far as one piece, in the order of the numbers of their last ones."""
        answers = [answer for answer in self._runs.get(run_id, {}).values() if answer.pieces]
        answers.sort(key=lambda answer: answer.last.n)
        return [
            replace(answer.last, text="".join(answer.pieces), is_whole=True) for answer in answers
        ]

    def __len__(self) -> int:
        return len(self._runs)
