"""Runs whose submitter reads them: what is written from the submit on is kept for it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import NewSession
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NewTurn
from actors._kernel.stores.conversations import NO_FACT
from actors._runtime.client import live_events
from actors._runtime.client.live_events import LiveEvents
from actors._runtime.loop.clock import SystemClock
from actors._runtime.loop.tasks import Ahead
from persistence._postgres.commits import outcomes
from persistence._postgres.conversations import fact_readers
from persistence._postgres.reads import reads
from tests.conformance.bed import Turns, result, started
from tests.conformance.run_store.test_sessions import CHAT, ENDED, STARTED, node
from tests.integration.persistence.hosts import host, store_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._kernel.stores.conversations import SessionFact
    from tests.conformance.bed import Bed

FOLLOWED = NewSession("p", is_followed=True)


@pytest.fixture(autouse=True)
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers read only what they are told of."""
    polls = (reads, "TAIL_POLL_S"), (reads, "FIRST_POLL_S"), (fact_readers, "POLL_S")
    for module, name in (*polls, (live_events, "QUIET_S")):
        monkeypatch.setattr(module, name, 3_600)


@pytest.fixture
def fetch_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reads of logs and facts."""
    names: list[str] = []
    for owner, name in ((reads.Reads, "_fetch_new"), (fact_readers.FactReaders, "_write_watched")):
        inner: Any = getattr(owner, name)

        async def fetch(self: Any, places: Any, inner: Any = inner, name: str = name) -> Any:
            names.append(name)
            return await inner(self, places)

        monkeypatch.setattr(owner, name, fetch)
    return names


async def follow(bed: Bed, **parts: Any) -> Turns:
    """Submit a run that its submitter reads."""
    return Turns(bed, (await bed.submit(agent=CHAT, session=FOLLOWED, **parts)).run_id, CHAT)


def log_of(bed: Bed, run_id: RunId) -> AsyncGenerator[RunLogEntry, None]:
    """Return the entries of a run, as its reader gets them."""
    return LiveEvents(SystemClock(), bed.store).merge(run_id, bed.store.reads.tail(run_id))


@asynccontextmanager
async def facts_of(bed: Bed) -> AsyncIterator[Ahead[SessionFact]]:
    """Yield the facts of the session, as its reader gets them."""
    sessions, followed_sessions = bed.store.data.sessions, store_of(bed).followed
    assert followed_sessions is not None
    with followed_sessions.facts_of(CHAT, after=NO_FACT) as handed_facts:

        async def rest() -> AsyncIterator[SessionFact]:
            after = NO_FACT if handed_facts is None else handed_facts.begin - 1
            async with aclosing(sessions.tail(CHAT, after=after)) as tail:  # type: ignore[type-var]
                async for fact in tail:
                    yield fact

        async with asyncio.timeout(20), aclosing(Ahead(rest(), handed=handed_facts)) as facts:
            yield facts


async def entries_of(bed: Bed, run_id: RunId) -> list[RunLogEntry]:
    """Return the entries of an ended run, as its reader gets them."""
    async with asyncio.timeout(20):
        return [entry async for entry in log_of(bed, run_id)]


async def take(facts: Ahead[SessionFact], count: int) -> list[SessionFact]:
    """Return the next facts."""
    return [await facts.take() for _ in range(count)]


async def test_a_reader_that_comes_late_reads_nothing(
    postgres_dsn: str, schema: str, fetch_names: list[str]
) -> None:
    """It gets what was written since its submit, as it is stored. A second reader reads the rows."""
    async with host(postgres_dsn, schema) as bed:
        run = await follow(bed)
        await run.commit(run.turn(started(CHAT), session=STARTED))
        await run.complete(turns=(node("a"),), session=ENDED)
        entries = await entries_of(bed, run.run_id)
        async with facts_of(bed) as tail:
            facts = await take(tail, 3)
        assert fetch_names == []

        assert entries == [entry async for entry in bed.store.reads.entries(run.run_id)]
        assert facts == await bed.store.data.sessions.facts(CHAT)
        assert [fact.kind for fact in facts] == ["queued", "started", "ended"]
        assert await entries_of(bed, run.run_id) == entries
        async with facts_of(bed) as tail:
            assert await take(tail, 3) == facts
        assert fetch_names == ["_fetch_new", "_write_watched"]


async def test_entries_come_with_the_turns_of_their_commit(postgres_dsn: str, schema: str) -> None:
    """They are the nodes as they are read. Large ones, and those of a commit that clears some, are read."""
    large = ChatMessage.of("user", "x" * outcomes.MAX_HANDED_CHARS)
    aside = NewTurn("aside", "b", ChatMessage.of("user", "no node"))
    async with host(postgres_dsn, schema) as bed:
        run = await follow(bed)
        await run.commit(run.turn(started(CHAT), session=STARTED))
        await run.commit(run.turn(result("1"), turns=(node("a"), aside)))
        await run.commit(run.turn(result("2"), turns=(NewTurn(CHAT.key, "c", large),)))
        await run.append(result("3"))
        await run.complete(clear_turns=True, session=ENDED)
        first, second, third, fourth, last = await entries_of(bed, run.run_id)

        assert (first.said, fourth.said, third.said, last.said) == ({}, {}, None, None)
        assert second.said == {"a": node("a").message}


async def test_the_reader_of_a_joined_run_reads_its_beginning(
    postgres_dsn: str, schema: str
) -> None:
    """That was written before the submit. So is the fact that it was queued."""
    async with host(postgres_dsn, schema) as bed:
        run, store = await follow(bed), store_of(bed)
        await run.commit(run.turn(started(CHAT), session=STARTED))
        async with aclosing(log_of(bed, run.run_id)) as log, facts_of(bed) as facts:
            await anext(log)
            await facts.take()
        joined_run = await follow(bed, on_conflict="join")
        assert joined_run.run_id == run.run_id
        assert not store._log_readers.takes_entries(run.run_id)
        async with aclosing(log_of(bed, run.run_id)) as log, facts_of(bed) as facts:
            assert (await anext(log)).seq == 0
            assert [fact.kind for fact in await take(facts, 2)] == ["queued", "started"]


async def test_a_run_that_another_host_executes_is_found_by_a_poll(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitter's host lost the agent before the run began."""
    async with host(postgres_dsn, schema) as bed, bed.rival() as rival:
        run = await follow(bed)
        await bed.lose_to(rival)
        run.bed = rival
        await run.commit(run.turn(started(CHAT), session=STARTED))
        await run.complete(session=ENDED)
        monkeypatch.setattr(fact_readers, "POLL_S", 0.01)
        async with facts_of(bed) as facts:
            assert [fact.kind for fact in await take(facts, 3)] == ["queued", "started", "ended"]
        monkeypatch.setattr(live_events, "QUIET_S", 0.01)
        assert [entry.seq for entry in await entries_of(bed, run.run_id)] == [0, 1]


async def test_nothing_is_kept_for_a_submitter_that_does_not_read(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a few seconds; the run is then read as any other."""
    monkeypatch.setattr(reads, "BEGUN_S", 0)
    async with host(postgres_dsn, schema) as bed:
        run, store = await follow(bed), store_of(bed)
        readers, facts = store._log_readers, store._fact_readers
        await until(
            lambda: not (readers.takes_entries(run.run_id) or facts.has(CHAT)), "they are dropped"
        )
        assert readers._logs == {}
        await run.commit(run.turn(started(CHAT), session=STARTED))
        await run.complete(session=ENDED)
        assert len(await entries_of(bed, run.run_id)) == 2
