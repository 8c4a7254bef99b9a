"""The events of a session, from its facts and from the entries of the active run between them.

Runs of a session execute one after the other, so the last fact and the last entry of the active run define a
position. Two readers may get the same fact between different entries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, Final

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.conversations import NO_FACT, SessionFact
from actors._runtime.client.live_events import MergedLog
from actors._runtime.loop.tasks import Ahead
from actors._runtime.runtime import Runtime
from actors._sessions.errors import CursorError
from actors._sessions.events import EVENTS, EventCursor, SessionEvent
from actors._sessions.translation import FoundEvent, RunTranslator, TranslatedLog

FIRST_FACT_S: Final = 0.5
"""Seconds that a reader of one run waits for a fact before it reads if the run still exists."""
LOOK_BACK: Final = 50
"""Number of facts that are read at once to find the active run at a cursor."""


@dataclass(slots=True)
class SessionFeed:
    """A reader of one session.

    Attributes:
        runtime: The runtime with the store and the live pieces of answers.
        agent: The session's agent.
        at: The position after the last event that was read.
        live: True if pieces of answers are yielded, too. They are not stored.
        only: The only run whose events are yielded. The feed ends with the run's last event. None for all runs.
        resumes: With `only`: True if `at` is the cursor of an event that was read, False if it is the run's
            start.
    """

    runtime: Runtime
    agent: AgentId
    at: EventCursor = field(default_factory=EventCursor)
    live: bool = False
    only: RunId | None = None
    resumes: bool = False
    _active: RunId | None = None
    _is_placed: bool = False
    _early_events: TranslatedEvents | None = None
    """The log of the run `only`, read together with the facts, which saves a read before its first event."""

    async def past(self) -> AsyncGenerator[SessionEvent, None]:
        """Yield the stored events up to now."""
        await self.take_position()
        sessions = self.runtime.store.data.sessions
        while facts := await sessions.facts(self.agent, after=self.at.last_fact):
            for fact in facts:
                async for event in self._so_far():
                    yield event
                async for event in self._of_fact(fact):
                    yield event
        async for event in self._so_far():
            yield event

    async def follow(self) -> AsyncGenerator[SessionEvent, None]:
        """Yield the events after the cursor, then new events, until closed.

        With `only`: until that run has ended.
        """
        await self.take_position()
        async with self._facts() as ahead, self._read_early(ahead.news):
            if self.only is not None and await self._is_gone(self.only, ahead):
                return
            while True:
                if self._active is not None and self._wants(self._active):
                    async for event in self._run(self._active, ahead):
                        yield event
                    if self.only is not None:
                        return
                fact = await ahead.take()
                async for event in self._of_fact(fact):
                    yield event
                if self.only == fact.run_id and fact.kind == "ended":
                    return

    @asynccontextmanager
    async def _facts(self) -> AsyncIterator[Ahead[SessionFact]]:
        """Yield the facts after the cursor, and new ones."""
        followed, after = self.runtime.store.followed, self.at.last_fact
        followed_facts = (
            nullcontext() if followed is None else followed.facts_of(self.agent, after=after)
        )
        with followed_facts as handed_facts:
            # Evaluated when the first read begins: facts that were handed over before it are not read again.
            facts = self._facts_after(
                lambda: after if handed_facts is None else handed_facts.begin - 1
            )
            async with aclosing(Ahead(facts, handed=handed_facts)) as ahead:
                yield ahead

    async def _facts_after(self, after: Callable[[], int]) -> AsyncGenerator[SessionFact, None]:
        facts = self.runtime.store.data.sessions.tail(self.agent, after=after())
        async with aclosing(facts):  # type: ignore[type-var]
            async for fact in facts:
                yield fact

    async def _is_gone(self, run_id: RunId, facts: Ahead[SessionFact]) -> bool:
        """Return True if a run was deleted with its session: not if the feed's next fact is of that run."""
        # The first fact nearly always comes at once, and saves the read of the run.
        if not facts.has_next():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_FACT_S):
                    await facts.until_next()
        fact = facts.peek()
        if fact is not None and fact.run_id == run_id:
            return False
        return await self.runtime.store.reads.run(run_id) is None

    async def _run(
        self, run_id: RunId, facts: Ahead[SessionFact]
    ) -> AsyncGenerator[SessionEvent, None]:
        """Yield the events of the active run and new facts, up to the run's last entry."""
        if self.at.next_seq:
            row = await self.runtime.store.reads.run(run_id)
            if row is not None and row.status.is_terminal and self.at.next_seq > row.last_seq:
                return  # the fact of its end comes next, perhaps after other facts
        early_events = nullcontext(self._early_events) if self._early_events else None
        async with early_events or self._entries(run_id, facts.news) as entries:
            while True:
                if entries.has_next():
                    try:
                        found_event = await entries.take()
                    except StopAsyncIteration:
                        return
                    if found_event is None:
                        continue
                    if found_event[2]:
                        async for event in self._before_end(run_id):
                            yield event
                    yield self._move_past(found_event)
                elif facts.has_next() and not self._is_later(run_id, facts):
                    async for event in self._of_fact(await facts.take()):
                        yield event
                    if self._active != run_id:
                        return  # the session was deleted meanwhile and created again
                else:
                    # No await since `has_next`: what arrives after `clear` sets the event again.
                    facts.news.clear()
                    await facts.news.wait()

    @asynccontextmanager
    async def _read_early(self, news: asyncio.Event) -> AsyncIterator[None]:
        """Read the log of the run `only` during the block, if it is read from its first entry on."""
        if self.only is None or self.resumes:
            yield
            return
        async with self._entries(self.only, news) as self._early_events:
            yield

    @asynccontextmanager
    async def _entries(self, run_id: RunId, news: asyncio.Event) -> AsyncIterator[TranslatedEvents]:
        """Yield the events of a run after the cursor, and new ones."""
        begin = self.at.next_seq
        log = self.runtime.tail(run_id, from_seq=begin)
        open_reader = partial(self.runtime.live.reading, run_id, log, pieces=self.live, whole=True)
        async with open_reader(after=begin - 1, news=news) as merged_log:
            yield TranslatedEvents(merged_log, await self._translate_log(run_id))

    def _is_later(self, run_id: RunId, facts: Ahead[SessionFact]) -> bool:
        """Return True if the next fact is known and has to be yielded after the active run's next entry."""
        fact = facts.peek()
        is_early = fact is not None and (fact.kind, fact.run_id) == ("cancelling", run_id)
        return (is_early and self.at.seq < 0) or _is_end_of(run_id, facts)

    async def _before_end(self, run_id: RunId) -> AsyncGenerator[SessionEvent, None]:
        """Yield the facts before a run's end, so that a request to cancel comes before the cancellation."""
        facts = await self.runtime.store.data.sessions.facts(self.agent, after=self.at.last_fact)
        for fact in takewhile(lambda fact: fact.run_id != run_id or fact.kind != "ended", facts):
            if fact.kind == "started":
                return  # the session was deleted and created again
            async for event in self._of_fact(fact):
                yield event

    async def _so_far(self) -> AsyncGenerator[SessionEvent, None]:
        """Yield the events of the active run up to now."""
        run_id = self._active
        if run_id is not None and self._wants(run_id):
            translated_log = await self._translate_log(run_id)
            async for entry in self.runtime.entries(run_id, from_seq=self.at.next_seq):
                for found_event in await translated_log.of(entry):
                    if found_event[2]:
                        async for event in self._before_end(run_id):
                            yield event
                    yield self._move_past(found_event)

    async def _translate_log(self, run_id: RunId) -> TranslatedLog:
        """Return the translation of a run's entries after the cursor."""
        translated_log = TranslatedLog(self._translator(run_id), self.at.next_seq, self.at.skip)
        if self.at.next_seq > 0:
            await translated_log.note(self.runtime.entries(run_id))
        return translated_log

    def _move_past(self, found_event: FoundEvent) -> SessionEvent:
        """Move the cursor after an event of the active run; return the event with that cursor."""
        event, part, _ = found_event
        if event.seq < 0:
            return event
        self.at = replace(self.at, seq=event.seq, part=part)
        return event.model_copy(update={"event_id": str(self.at)})

    def _wants(self, run_id: RunId) -> bool:
        return self.only in (None, run_id)

    async def is_over(self) -> bool:
        """Return True if the run `only` has ended and all of its events are before the cursor."""
        row = None if self.only is None else await self.runtime.store.reads.run(self.only)
        if row is None or not row.status.is_terminal:
            return False
        if self._active == self.only:
            return self.at.next_seq > row.last_seq
        sessions, after = self.runtime.store.data.sessions, self.at.last_fact
        while facts := await sessions.facts(self.agent, after=after):
            if any(fact.run_id == self.only for fact in facts):
                return False
            after = facts[-1].number
        return True

    async def take_position(self) -> None:
        """Find the active run at the cursor. Later calls do nothing.

        A feed of one run from its start does not need it.

        Raises:
            CursorError: The session has no such event.
        """
        if self._is_placed or (self.only is not None and not self.resumes):
            return
        self._is_placed = True
        problem = "the session has no such event. It may have been deleted"
        sessions, upto = self.runtime.store.data.sessions, self.at.last_fact
        ended_runs: set[RunId] = set()
        while upto > NO_FACT:
            first = max(NO_FACT, upto - LOOK_BACK)
            page = await sessions.facts(self.agent, after=first, limit=upto - first)
            facts = [fact for fact in page if fact.number <= upto]
            if upto == self.at.last_fact and (not facts or facts[-1].number != upto):
                raise CursorError(str(self.at), self.agent.key, problem)
            start = next((fact for fact in reversed(facts) if fact.kind == "started"), None)
            ended_runs |= {fact.run_id for fact in facts if fact.kind == "ended"}
            if start is not None and start.run_id not in ended_runs:
                self._active = start.run_id
            if start is not None or len(facts) < upto - first:
                break  # earlier runs have ended, or were deleted
            upto = first
        if self.at.seq >= 0:
            run = self._active and await self.runtime.store.reads.run(self._active)
            if not run or run.last_seq < self.at.seq:
                raise CursorError(str(self.at), self.agent.key, problem)

    async def _of_fact(self, fact: SessionFact) -> AsyncGenerator[SessionEvent, None]:
        """Move the cursor after a fact, and yield its events.

        A fact has events if a run is queued, is asked to stop, or ends before it began.
        """
        # A fact before a run's end is read by `_before_end`, and comes again from the tail.
        if fact.number <= self.at.last_fact:
            return
        before = self.at
        self.at = EventCursor(fact.number, before.seq, before.part)
        if fact.kind == "started":
            self._active, self.at = fact.run_id, EventCursor(fact.number)
        elif fact.kind == "ended" and fact.run_id == self._active:
            self._active, self.at = None, EventCursor(fact.number)
        elif fact.kind == "queued":
            if fact.ahead and self._wants(fact.run_id):
                yield self._event(fact, "run_queued", {"ahead": fact.ahead})
        elif not self._wants(fact.run_id):
            return
        elif fact.kind == "cancelling":
            run = await self.runtime.store.reads.run(fact.run_id)
            reason = "" if run is None else run.cancel_requested or ""
            yield self._event(fact, "cancel_requested", {"reason": reason})
        else:
            if not (before.is_half and before.fact == fact.number):
                async for entry in self.runtime.entries(fact.run_id):
                    for event in await self._translator(fact.run_id).of(entry):
                        half = EventCursor(fact.number, before.seq, before.part, is_half=True)
                        yield event.model_copy(update={"event_id": str(half)})
            yield self._event(fact, "run_dequeued", {})

    def _event(self, fact: SessionFact, type_: str, payload: dict[str, Any]) -> SessionEvent:
        return EVENTS.validate_python(
            {
                "type": type_,
                "event_id": str(self.at),
                "session_id": self.agent.key,
                "run_id": fact.run_id,
                "agent_id": str(self.agent),
                "at": fact.at,
                "payload": payload,
            }
        )

    def _translator(self, run_id: RunId) -> RunTranslator:
        nodes = partial(self.runtime.store.data.sessions.nodes, self.agent)
        return RunTranslator(self.agent.key, run_id, self.agent, self.runtime.hidden_names, nodes)


def _is_end_of(run_id: RunId, facts: Ahead[SessionFact]) -> bool:
    """Return True if the next fact is known and is the end of a run."""
    fact = facts.peek()
    return fact is not None and fact.kind == "ended" and fact.run_id == run_id


class TranslatedEvents:
    """The events of a run for one reader, translated when they are taken."""

    def __init__(self, log: MergedLog, translated_log: TranslatedLog) -> None:
        self._log, self._translated_log = log, translated_log
        self._events: deque[FoundEvent] = deque()

    def has_next(self) -> bool:
        """Return True if `take` need not wait for the run."""
        return bool(self._events) or self._log.has_next()

    async def take(self) -> FoundEvent | None:
        """Return the next event, once `has_next`, or None if the next entry has no event.

        Raises:
            StopAsyncIteration: There are no more.
        """
        if not self._events:
            for entry in await self._log.take():
                self._events += await self._translated_log.of(entry)
        return self._events.popleft() if self._events else None
