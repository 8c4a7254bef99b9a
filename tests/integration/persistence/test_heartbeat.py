"""The heartbeat thread: it renews, reports, names what blocks the loop, and lets go in time."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from actors._kernel.runtime.ids import RunId
from actors._kernel.stores.runs import Blocker, Blocking
from actors._runtime.loop.clock import SystemClock
from persistence._postgres.sharding import heartbeat
from persistence._postgres.sharding.ownership import SQL_HEARTBEAT
from persistence.postgres import Heartbeat, Host
from tests.harness.proxy import FaultProxy
from tests.integration.persistence.hosts import host, sql, store_of

if TYPE_CHECKING:
    from actors._kernel.runtime.rows import HostReport
    from actors._kernel.runtime.scheduler import ShardLease
    from persistence._postgres.connection.link import Connection
    from tests.conformance.bed import Bed


def beating(bed: Bed, reports: asyncio.Queue[HostReport], **more: Any) -> Heartbeat:
    """A heartbeat of the bed's host."""
    host: dict[str, Any] = {
        "known": lambda: tuple(bed.leases.values()),
        "on_report": reports.put_nowait,
        "blocker": lambda _: Blocker(place="a test"),
        "machine": SystemClock(),
        **more,
    }
    store = store_of(bed)
    return Heartbeat(store.settings, bed.owner, Host(**host), store.clock)


@pytest.mark.item(51, 206)
async def test_it_keeps_the_shards_beyond_the_lease_time(postgres_dsn: str, schema: str) -> None:
    """While it beats nobody else gets them; after it stopped they are free."""
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with (
        host(postgres_dsn, schema, lease_s=3, heartbeat_s=0.1) as bed,
        host(postgres_dsn, schema, "h2") as other,
    ):
        async with beating(bed, reports) as beat:
            assert beat.remaining_s > 0
            await asyncio.sleep(3.5)
            stolen_leases = await other.claim()
            remaining = beat.remaining_s
            report = await reports.get()
        async with asyncio.timeout(20):
            while not (free := await other.claim()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    assert stolen_leases == []
    assert (report.lost, report.unknown) == ((), ())
    assert 0 < remaining <= 3
    assert len(free) == len(bed.leases)
    assert beat.remaining_s < 0


@pytest.mark.item(51, 206)
async def test_no_error_of_the_driver_ends_it(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asyncpg's state machine may say anything when a server goes away in the middle of a call."""
    problems: list[Exception] = [
        asyncpg.InternalClientError("cannot switch to state 12"),
        RuntimeError("never heard of"),
    ]
    fetch = asyncpg.Connection.fetch

    async def fails_first(connection: Connection, sql: str, *args: object, **more: Any) -> Any:
        if sql == SQL_HEARTBEAT and problems:
            raise problems.pop()
        return await fetch(connection, sql, *args, **more)

    monkeypatch.setattr(asyncpg.Connection, "fetch", fails_first)
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with (
        host(postgres_dsn, schema, heartbeat_s=0.1) as bed,
        beating(bed, reports) as beat,
        asyncio.timeout(10),
    ):
        await reports.get()
        remaining = beat.remaining_s

    assert problems == []
    assert remaining > 0


@pytest.mark.item(51, 206)
async def test_no_error_of_the_host_ends_it_either(
    postgres_dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Failures in a row are said once, with the first one's words, and so is their end."""
    problems = [RuntimeError("changed size"), RuntimeError("no shards")]
    is_confirmed = asyncio.Event()

    def list_leases() -> tuple[ShardLease, ...]:
        if problems:
            raise problems.pop()
        return ()

    def report(_: HostReport) -> None:
        is_confirmed.set()

    async with (
        host(postgres_dsn, schema, heartbeat_s=0.1) as bed,
        beating(bed, asyncio.Queue(), known=list_leases, on_report=report) as beat,
        asyncio.timeout(10),
    ):
        await is_confirmed.wait()
        remaining = beat.remaining_s

    assert remaining > 0
    lines = [record for record in caplog.records if record.module == "heartbeat"]
    # A busy machine may add that the loop is blocked.
    records = [record for record in lines if record.message.startswith("heartbeat")]
    assert [record.message for record in records] == [
        "heartbeat failed; trying again",
        "heartbeat is back",
    ]
    assert vars(records[0])["problem"] == "RuntimeError: no shards"


async def test_it_reports_what_was_lost_and_what_the_host_does_not_know(
    postgres_dsn: str, schema: str
) -> None:
    """On the main event loop, with the database's time."""
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with (
        host(postgres_dsn, schema, heartbeat_s=0.1) as bed,
        host(postgres_dsn, schema, "h2") as other,
        beating(bed, reports),
    ):
        lost_lease, forgotten_lease = list(bed.leases.values())[:2]
        await bed.store.shards.release([lost_lease])
        await other.claim()
        del bed.leases[forgotten_lease.shard]
        async with asyncio.timeout(20):
            while True:
                report = await reports.get()
                if report.lost and report.unknown:
                    break

    assert report.lost == (lost_lease,)
    assert report.unknown == (forgotten_lease.shard,)
    assert report.now.tzinfo is not None


async def test_it_reports_shards_that_other_hosts_wait_for(postgres_dsn: str, schema: str) -> None:
    """Half of each type, once a second host serves the same."""
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with host(postgres_dsn, schema, heartbeat_s=0.1) as bed, beating(bed, reports):
        alone = await reports.get()
        async with host(postgres_dsn, schema, "h2"), asyncio.timeout(20):
            while not (report := await reports.get()).surplus:
                pass

    assert alone.surplus == ()
    assert [(len(s.shards), s.count) for s in report.surplus] == [(4, 2), (4, 2)]
    assert {shard for s in report.surplus for shard in s.shards} == set(bed.leases)


@pytest.mark.item(51)
async def test_a_blocked_loop_is_named_and_keeps_its_lease(
    postgres_dsn: str,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The warning holds the stack of what blocks; renewing goes on meanwhile."""
    monkeypatch.setattr(heartbeat, "BLOCKED_S", 0.3)
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with (
        host(postgres_dsn, schema, lease_s=2, heartbeat_s=0.1) as bed,
        beating(bed, reports) as beat,
    ):
        time.sleep(2.4)  # noqa: ASYNC251
        remaining = beat.remaining_s

    assert remaining > 0
    messages = [r.message for r in caplog.records if "event loop is blocked" in r.message]
    assert sum("test_a_blocked_loop_is_named" in words for words in messages) == 1


@pytest.mark.costly
async def test_a_loop_that_stays_blocked_releases_shards_that_others_serve(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First what can go on elsewhere without harm, then the rest, with a mark of the agent that blocks."""
    monkeypatch.setattr(heartbeat, "HAND_OVER_S", 0.3)
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with (
        host(postgres_dsn, schema, lease_s=1, heartbeat_s=0.1, blocked_s=4) as bed,
        host(postgres_dsn, schema, "h2") as other,
    ):
        lease, doubtful_lease, *_ = bed.leases.values()
        blocker = Blocker(
            place="f (g.py:1)",
            run_id=RunId("r"),
            shard=lease.shard,
            in_doubt=frozenset([doubtful_lease.shard]),
        )
        lease_counts: list[int] = []

        def block() -> None:
            """Look from another thread at what this host still owns, while its loop does not turn."""
            query = "select count(*)::int as n from shards where owner = $1"
            for limit in (2, 0):
                while not lease_counts or lease_counts[-1] > limit:
                    [row] = asyncio.run(sql(postgres_dsn, schema, query, bed.owner))
                    lease_counts.append(row["n"])

        async with beating(bed, reports, blocker=lambda _: blocker) as beat:
            thread = threading.Thread(target=block)
            thread.start()
            thread.join(timeout=30)
            remaining = beat.remaining_s
            async with asyncio.timeout(20):
                while len((report := await reports.get()).lost) < len(bed.leases):
                    pass
        leases = await other.claim()
        marks = await other.store.backlog.blockings([lease.shard for lease in leases])

    assert lease_counts[0] == len(bed.leases)
    assert [n for n in sorted(set(lease_counts), reverse=True) if n != 1] == [len(bed.leases), 2, 0]
    assert remaining > 0
    assert set(report.lost) == set(bed.leases.values())
    assert marks == [Blocking(run_id=RunId("r"), seqs=(-1,), place="f (g.py:1)")]


async def test_a_blocked_loop_gives_away_what_it_was_given_meanwhile(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a claim is not read while the loop is blocked, and nobody executes in its shards."""
    monkeypatch.setattr(heartbeat, "HAND_OVER_S", 0.3)
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    owned_counts: list[int] = []
    start_s = time.monotonic()

    def block() -> None:
        """Look from another thread at what this host still owns, while its loop does not turn."""
        query = "select count(*)::int as n from shards where owner = $1"
        while not owned_counts or (owned_counts[-1] > 0 and time.monotonic() < start_s + 25):
            [row] = asyncio.run(sql(postgres_dsn, schema, query, bed.owner))
            owned_counts.append(row["n"])

    async with (
        host(postgres_dsn, schema, lease_s=1, heartbeat_s=0.1, blocked_s=1) as bed,
        host(postgres_dsn, schema, "h2") as other,
    ):
        [first, *unread_leases] = bed.leases.values()
        bed.leases = {first.shard: first}
        async with beating(bed, reports):
            thread = threading.Thread(target=block)
            thread.start()
            thread.join(timeout=30)
            async with asyncio.timeout(20):
                while not (report := await reports.get()).lost:
                    pass
        leases = await other.claim()

    assert owned_counts[0] == 1 + len(unread_leases)
    assert owned_counts[-1] == 0
    assert {(lease.shard, lease.epoch) for lease in report.lost} == {
        (lease.shard, lease.epoch) for lease in (first, *unread_leases)
    }, "else the answer would be believed when it is read"
    assert len(leases) == 1 + len(unread_leases)


async def test_a_blocked_loop_keeps_shards_that_no_other_host_serves(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is alone goes on where it was, however long that took."""
    monkeypatch.setattr(heartbeat, "HAND_OVER_S", 0.3)
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with (
        host(postgres_dsn, schema, lease_s=0.5, heartbeat_s=0.1, blocked_s=0.5) as bed,
        beating(bed, reports) as beat,
    ):
        time.sleep(2)  # noqa: ASYNC251
        remaining = beat.remaining_s
        report = await reports.get()

    assert remaining > 0
    assert report.lost == ()


async def test_it_goes_on_after_its_connection_was_lost(postgres_dsn: str, schema: str) -> None:
    """A lost beat is tried again at once; the confirmed time never lies."""
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with (
        FaultProxy.to(postgres_dsn) as proxy,
        host(proxy.through(postgres_dsn), schema, heartbeat_s=0.1) as bed,
        beating(bed, reports) as beat,
    ):
        proxy.reset()
        confirmed_at = beat.confirmed_at
        async with asyncio.timeout(20):
            while beat.confirmed_at == confirmed_at:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        assert beat.confirmed_at <= time.monotonic()


async def test_it_stops_with_its_block_also_on_error(postgres_dsn: str, schema: str) -> None:
    """No thread and no connection stays behind, and the error is the block's own."""
    reports: asyncio.Queue[HostReport] = asyncio.Queue()
    async with host(postgres_dsn, schema) as bed:
        with pytest.raises(ZeroDivisionError):
            async with beating(bed, reports) as beat:
                raise ZeroDivisionError

    assert beat._thread is not None
    assert not beat._thread.is_alive()
