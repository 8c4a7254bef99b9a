"""Commits hand what they wrote to readers of logs and sessions: to those here, and by NATS to others."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.commit import LeaseLost, Suspend
from actors._kernel.runtime.waits import WakeSet
from persistence._postgres.commits import outcomes
from persistence._postgres.conversations import fact_readers, sessions
from persistence._postgres.reads import reads
from tests.conformance.bed import Turns, outgoing, result, started, suspended
from tests.conformance.run_store.test_sessions import CHAT, ENDED, STARTED, said, submit
from tests.harness.proxy import FaultProxy
from tests.integration.persistence.hosts import host, store_of
from tests.integration.persistence.test_log_hints import is_followed, over_nats
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.log_entry import RunLogEntry
    from tests.conformance.bed import Bed
    from tests.harness.servers import TestNats

NEVER_S = 3_600


@pytest.fixture(autouse=True)
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers read only what they are told of."""
    for module, name in ((reads, "TAIL_POLL_S"), (reads, "FIRST_POLL_S"), (fact_readers, "POLL_S")):
        monkeypatch.setattr(module, name, NEVER_S)


class Reading:
    """A reader of a log that has taken its present entries, and the number of its reads since."""

    def __init__(self, bed: Bed, run_id: RunId, tail: AsyncIterator[RunLogEntry]) -> None:
        self.bed, self.run_id, self.tail = bed, run_id, tail
        self.reads = 0

    @classmethod
    @asynccontextmanager
    async def of(
        cls, bed: Bed, run_id: RunId, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Reading]:
        """Yield one that waits for the entry behind the last one."""
        batcher, fetch = store_of(bed).reads._new, store_of(bed).reads._new.call
        async with aclosing(bed.store.reads.tail(run_id)) as tail:  # type: ignore[type-var]
            reading = cls(bed, run_id, tail)

            def call(key: Any) -> Any:
                reading.reads += 1
                return fetch(key)

            monkeypatch.setattr(batcher, "call", call)
            for _ in await reading.stored():
                await anext(tail)
            reading.reads = 0
            yield reading

    async def stored(self) -> list[RunLogEntry]:
        """Return the log as it is read."""
        return [entry async for entry in self.bed.store.reads.entries(self.run_id)]

    async def next(self, count: int) -> list[RunLogEntry]:
        """Return the next entries, which equal the stored ones, instants included."""
        async with asyncio.timeout(20):
            entries = [await anext(self.tail) for _ in range(count)]
        assert entries == (await self.stored())[entries[0].seq :]
        return entries


async def commits_of_all_shapes(run: Turns) -> int:
    """Write by each function that writes entries; return the number of entries."""
    await run.append(result("1", 2.50), result("2", {"ünï": [None, 10**25, "\u2028"]}))
    commits = run.bed.store.commits
    merged_calls = (
        commits.append(run.lease, [result(f"{n}")], expected_seq=run.seq + n) for n in range(3)
    )
    run.seq = max(await asyncio.gather(*merged_calls))
    await run.commit(run.turn(result("6"), state={"k": 1}))  # the fast path
    wake = WakeSet(signals=("go",))
    await run.commit(
        run.turn(
            result("7"), suspended(wake), then=Suspend(wake), outgoing=(outgoing(to=CHAT, id="o"),)
        )
    )
    return 8


async def test_a_reader_here_reads_no_entry_that_this_process_commits(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the entries as they are stored, once each, also of commits that are merged."""
    async with host(postgres_dsn, schema) as bed:
        run = await bed.begin()
        async with Reading.of(bed, run.run_id, monkeypatch) as reading:
            waiting = asyncio.ensure_future(reading.next(8))
            await asyncio.sleep(0)
            assert await commits_of_all_shapes(run) == 8
            assert [entry.seq for entry in await waiting] == [*range(1, 9)]
            assert reading.reads == 0


async def test_a_reader_elsewhere_has_entries_with_the_hint(  # noqa: PLR0917 - fixtures
    postgres_dsn: str,
    schema: str,
    nats_server: TestNats,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By NATS, as they are stored; a large commit, and one of which a hint was lost before, is read."""
    async with (
        host(postgres_dsn, schema) as bed,
        bed.rival() as rival,
        over_nats(bed, nats_server.url, namespace) as hints,
        over_nats(rival, nats_server.url, namespace),
    ):
        run = await bed.begin()
        async with Reading.of(rival, run.run_id, monkeypatch) as reading:
            waiting = asyncio.ensure_future(reading.next(8))
            await until(lambda: is_followed(bed, run.run_id), "told")
            await commits_of_all_shapes(run)
            await waiting
            assert reading.reads <= 1  # it was told of the first commit before it was subscribed
            before = reading.reads

            await run.append(result("9", "x" * outcomes.MAX_HANDED_CHARS))
            await reading.next(1)
            assert reading.reads == before + 1

            with monkeypatch.context() as lossy_patch:
                lossy_patch.setattr(hints, "announce_growth", lambda *_: None)
                await run.append(result("10"))
            await run.append(result("11"))
            assert len(await reading.next(2)) == 2
            assert reading.reads == before + 2


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1", b'{"from": 1, "entries": [["k", "", {}, "2020-01-01"]]}', b'{"from": 1}'],
)
async def test_a_hint_without_entries_that_are_understood_is_a_hint_to_read(  # noqa: PLR0917 - fixtures
    postgres_dsn: str,
    schema: str,
    nats_server: TestNats,
    namespace: str,
    data: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hosts of the release before send no entries, and of a later one perhaps others."""
    monkeypatch.setattr("broker._gateway.log_hints._data_of", lambda _: data)
    async with (
        host(postgres_dsn, schema) as bed,
        bed.rival() as rival,
        over_nats(bed, nats_server.url, namespace),
        over_nats(rival, nats_server.url, namespace),
    ):
        run = await bed.begin()
        async with Reading.of(rival, run.run_id, monkeypatch) as reading:
            waiting = asyncio.ensure_future(reading.next(1))
            await until(lambda: is_followed(bed, run.run_id), "told")
            await run.append(result("1"))
            await waiting
            assert reading.reads >= 1


async def test_a_host_that_lost_its_shard_hands_over_nothing(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its readers see what the other host writes, and not what it would have written itself."""
    async with host(postgres_dsn, schema) as bed, bed.rival() as rival:
        run = await bed.begin()
        async with Reading.of(bed, run.run_id, monkeypatch) as reading:
            waiting = asyncio.ensure_future(reading.next(1))
            await asyncio.sleep(0)
            turn = run.turn(result("1", "stale"))
            await bed.lose_to(rival)
            assert isinstance(await bed.store.commits.commit(turn), LeaseLost)
            assert not waiting.done()
            run.bed = rival
            await run.append(result("1", "true"))
            store_of(bed)._log_readers.grew(run.run_id)
            [entry] = await waiting
            assert entry.payload["value"] == "true"


@pytest.mark.parametrize("what", ["request", "response"])
async def test_entries_of_a_commit_whose_answer_is_lost_come_once(
    postgres_dsn: str, schema: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read if nobody knows the instant that was written."""
    async with (
        FaultProxy.to(postgres_dsn) as proxy,
        host(proxy.through(postgres_dsn), schema) as bed,
    ):
        run = await bed.begin()
        async with Reading.of(bed, run.run_id, monkeypatch) as reading:
            waiting = asyncio.ensure_future(reading.next(2))
            await asyncio.sleep(0)
            lose = proxy.lose_request if what == "request" else proxy.lose_response
            loss = lose(request_has=b"needle")
            await run.append(result("1", "needle"))
            await run.append(result("2"))
            assert [entry.seq for entry in await waiting] == [1, 2]
            assert loss.happened.is_set()


async def test_a_reader_of_a_session_reads_no_fact_that_this_process_writes(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the database notifies it of its own writes. The start of a run reads no fact, either."""
    counts: Counter[str] = Counter()
    async with host(postgres_dsn, schema) as bed, bed.rival() as rival:
        store = store_of(bed).data.sessions
        await said(bed, "a")
        for name, statement in (("_facts", sessions.SQL_FACTS), ("_queued", "queued")):
            batcher = getattr(store, name)

            def call(key: Any, inner: Any = batcher.call, statement: str = statement) -> Any:
                counts[statement] += 1
                return inner(key)

            monkeypatch.setattr(batcher, "call", call)
        async with aclosing(store.tail(CHAT)) as facts:  # type: ignore[type-var]
            read_facts = [await anext(facts) for _ in range(3)]
            waiting = asyncio.ensure_future(anext(facts))
            await asyncio.sleep(0)
            counts.clear()
            runs = [(await submit(bed, id=f"q{n}")).run_id for n in range(2)]
            queued = [await store.queued(CHAT, run_id) for run_id in runs]
            assert queued == [*(await rival.store.data.sessions.facts(CHAT))[3:]]
            run = Turns(bed, runs[0], CHAT)
            await run.commit(run.turn(started(CHAT), session=STARTED))
            await run.complete(session=ENDED)
            async with asyncio.timeout(20):
                read_facts += [await waiting, *[await anext(facts) for _ in range(3)]]
                assert counts == {}
                await submit(rival, id="q9")  # of another process's facts it is notified
                read_facts.append(await anext(facts))
            assert read_facts == await rival.store.data.sessions.facts(CHAT)
            assert counts[sessions.SQL_FACTS] >= 1
