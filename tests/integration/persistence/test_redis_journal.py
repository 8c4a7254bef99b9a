"""RedisJournal against a real Valkey: what it keeps, and what happens when the server misbehaves."""

from __future__ import annotations

import asyncio
import os
import pickle
import secrets
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from redis.asyncio import Connection, Redis

from actors._kernel.runtime.effects import EffectResult, Journal, ResultCache
from actors.errors import ContractError, InvalidNameError
from persistence._redis import client as redis_client
from persistence._redis.client import ANSWER_S, QUEUE_BYTES, QUEUE_LIMIT
from persistence._redis.journal import LOOKUP_LIMIT_S, MAX_VALUE_BYTES
from persistence.redis import RedisJournal, RedisUrlError, open_redis, open_redis_journal
from tests.harness.proxy import FaultProxy
from tests.harness.slow import BUSY_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.harness.servers import OwnRedis, TestRedis

LIMIT_S: Final = 20.0
PATIENT_S: Final = 5.0
LOOK: Final = "persistence._redis.journal.LOOKUP_LIMIT_S"
ANSWER: Final = "persistence._redis.client.ANSWER_S"
GONE: Final = "Redis does not answer; until it does, results are only in the log"
BACK: Final = "Redis is back"
DAMAGED: Final = "a result in Redis is damaged and was ignored; others like it will not be reported"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A server that is there is waited for on a busy machine too."""
    monkeypatch.setattr(LOOK, PATIENT_S)
    monkeypatch.setattr(ANSWER, PATIENT_S)
    return monkeypatch


@pytest.fixture
def space() -> str:
    """A namespace that no other test uses."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
async def journal(redis_server: TestRedis, space: str) -> AsyncIterator[RedisJournal]:
    """A running journal of its own namespace."""
    async with open_redis_journal(redis_server.url, namespace=space, ttl_s=60) as journal:
        yield journal


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Redis]:
    """A plain client, to look at and to damage what is stored."""
    client = Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


async def until(holds: Callable[[], object]) -> None:
    """Return once `holds()` does; for what nobody announces."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)


def count_records(caplog: pytest.LogCaptureFixture, message: str) -> int:
    """How often this was logged."""
    return sum(record.message == message for record in caplog.records)


def test_it_is_a_result_cache_and_a_journal() -> None:
    """By shape; mypy checks these lines."""
    cache: type[ResultCache] = RedisJournal
    journal: type[Journal] = RedisJournal

    assert (cache, journal) == (RedisJournal, RedisJournal)


async def test_a_stored_result_is_found_by_another_host(
    redis_server: TestRedis, journal: RedisJournal, space: str
) -> None:
    """The payload comes back equal and in the same types; other keys have none."""
    payload: dict[str, Any] = {"status": "ok", "value": {"b": [1, 1.0, None, True, "é\n"], "a": {}}}
    journal.keep("e:1", payload)
    await until(lambda: journal.counters.kept == 1)

    async with open_redis_journal(redis_server.url, namespace=space) as other:
        stored_result = await other.find("e:1")

        assert repr(stored_result) == repr(payload)
        assert await other.find("e:2") is None
    async with open_redis_journal(redis_server.url, namespace=f"{space}x") as stranger:
        assert await stranger.find("e:1") is None


async def test_a_lookup_finds_earlier_results(journal: RedisJournal) -> None:
    """Also when nothing has been sent yet; the value is that of the call, whatever changes it later."""
    value: list[Any] = [1]
    payload: dict[str, Any] = {"value": value}
    journal.keep("e:1", payload)
    value.append(2)

    assert await journal.find("e:1") == {"value": [1]}


@pytest.mark.item(141)
async def test_the_first_result_stays_until_it_expires(
    redis_server: TestRedis, journal: RedisJournal, space: str
) -> None:
    """Written once with a time to live that a second write does not prolong."""
    journal.keep("e:1", {"value": "first"})
    await until(lambda: journal.counters.kept == 1)
    async with raw(redis_server.url) as client:
        name = f"{space}:result:e:1"
        ends_at = await client.pexpiretime(name)
        left_s = await client.ttl(name)

        journal.keep("e:1", {"value": "second"})
        await until(lambda: journal.counters.kept == 2)

        assert 50 < left_s <= 60
        assert await client.pexpiretime(name) == ends_at
    assert await journal.find("e:1") == {"value": "first"}


async def test_a_result_expires_after_its_time(redis_server: TestRedis, space: str) -> None:
    """The server forgets it; that is no damage."""
    async with (
        open_redis_journal(redis_server.url, namespace=space, ttl_s=60) as journal,
        raw(redis_server.url) as client,
    ):
        journal.keep("e:1", {"value": 1})
        assert await journal.find("e:1") == {"value": 1}

        assert await client.pexpire(f"{space}:result:e:1", 100)
        async with asyncio.timeout(LIMIT_S):
            while await journal.find("e:1") is not None:  # noqa: ASYNC110 - it is Redis's clock
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("damage", ["cut", "changed", "moved", "text", "list"])
async def test_a_damaged_value_is_no_result_and_is_reported_once(
    redis_server: TestRedis, journal: RedisJournal, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """Cut off, one byte changed, another key's, foreign text, another type: ignored, said once."""
    journal.keep("e:1", {"value": "right"})
    journal.keep("e:2", {"value": "other"})
    await until(lambda: journal.counters.kept == 2)
    async with raw(redis_server.url) as client:
        key, other_key = (f"{journal.namespace}:result:e:{n}" for n in (1, 2))
        stored_bytes = await client.get(key)
        other = await client.get(other_key)
        assert isinstance(stored_bytes, bytes)
        assert isinstance(other, bytes)
        if damage == "list":
            await client.delete(key)
            await client.lpush(key, "x")
        else:
            values = {
                "cut": stored_bytes[:-3],
                "changed": stored_bytes.replace(b"right", b"wrong"),
                "moved": other,
                "text": b"hello",
            }
            await client.set(key, values[damage])

    assert await journal.find("e:1") is None
    assert await journal.find("e:1") is None
    assert await journal.find("e:2") == {"value": "other"}
    assert count_records(caplog, DAMAGED) == 1
    assert count_records(caplog, GONE) == 0


async def test_a_large_value_is_not_kept(journal: RedisJournal) -> None:
    """Over 1 MiB the log alone holds it."""
    journal.keep("large", {"value": "x" * MAX_VALUE_BYTES})
    journal.keep("small", {"value": "x"})

    assert await journal.find("large") is None
    assert await journal.find("small") == {"value": "x"}
    assert (journal.counters.oversized, journal.counters.dropped) == (1, 0)


async def test_a_full_queue_drops_its_oldest(redis_server: TestRedis, space: str) -> None:
    """By number and by size; what is left is sent, many values a round trip."""
    async with open_redis(redis_server.url) as redis:
        journal = RedisJournal(redis, namespace=space, ttl_s=60)
        for n in range(QUEUE_LIMIT + 10):  # nobody sends yet
            journal.keep(f"n:{n}", {"value": n})
        assert journal.counters.dropped == 10
        async with journal.running():
            await until(lambda: journal.counters.kept == QUEUE_LIMIT)
            assert await journal.find("n:9") is None
            assert await journal.find("n:10") == {"value": 10}

        large: dict[str, Any] = {"value": "x" * (MAX_VALUE_BYTES // 2)}
        fit = QUEUE_BYTES // (MAX_VALUE_BYTES // 2 + 100)
        for n in range(40):
            journal.keep(f"l:{n}", large)
        assert journal.counters.dropped == 10 + 40 - fit
        async with journal.running():
            await until(lambda: journal.counters.kept == QUEUE_LIMIT + fit)
            assert await journal.find("l:39") == large


async def test_many_recoveries_look_up_at_once(journal: RedisJournal) -> None:
    """Many runs that come back in the same moment all find theirs within the limit, on a busy machine too."""
    for n in range(100):
        journal.keep(f"e:{n}", {"value": n})
    await until(lambda: journal.counters.kept == 100)

    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(journal.find(f"e:{n}")) for n in range(200)]

    results = [look.result() for look in looks]
    assert results == [{"value": n} if n < 100 else None for n in range(200)]


async def test_a_killed_server_is_said_once_and_so_is_its_return(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture, patience: pytest.MonkeyPatch
) -> None:
    """Meanwhile keeping costs nothing and looking ends soon; what comes after the return is kept."""
    caplog.set_level("INFO")
    server = own_redis()
    async with open_redis_journal(server.url) as journal:
        journal.keep("before", {"value": 1})
        await until(lambda: journal.counters.kept == 1)
        await asyncio.to_thread(server.kill)
        patience.setattr(LOOK, LOOKUP_LIMIT_S)

        kept_s = []
        for n in range(5):
            start_s = time.perf_counter()
            journal.keep(f"lost:{n}", {"value": n})
            kept_s.append(time.perf_counter() - start_s)
            start_s = time.perf_counter()
            assert await journal.find("before") is None
            assert time.perf_counter() - start_s < LOOKUP_LIMIT_S + BUSY_S
        await until(lambda: journal.counters.dropped)
        await asyncio.to_thread(server.start)
        patience.setattr(LOOK, PATIENT_S)
        async with asyncio.timeout(LIMIT_S):
            while await journal.find("after") is None:
                journal.keep("after", {"value": 2})

        assert await journal.find("after") == {"value": 2}
    assert sorted(kept_s)[2] < 0.05, "most of them cost nothing, however busy the machine is"
    assert (count_records(caplog, GONE), count_records(caplog, BACK)) == (1, 1)


async def test_calls_do_not_wait_for_a_frozen_server(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture, patience: pytest.MonkeyPatch
) -> None:
    """A look gives up after 250 ms, and works again when the server does."""
    server = own_redis()
    async with open_redis_journal(server.url) as journal:
        journal.keep("e", {"value": 1})
        await until(lambda: journal.counters.kept == 1)
        patience.setattr(LOOK, LOOKUP_LIMIT_S)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            start_s = time.perf_counter()
            journal.keep("f", {"value": 2})
            result = await journal.find("e")
            waited_s = time.perf_counter() - start_s
        finally:
            os.kill(server.pid, signal.SIGCONT)
        patience.setattr(LOOK, PATIENT_S)
        assert result is None
        assert waited_s < LOOKUP_LIMIT_S + BUSY_S
        async with asyncio.timeout(LIMIT_S):
            while await journal.find("e") != {"value": 1}:
                pass
        assert await journal.find("f") == {"value": 2}
    assert count_records(caplog, GONE) == 1


async def test_a_server_that_refuses_writes_is_said_once(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of memory, for example; without the value in the line."""
    caplog.set_level("INFO")
    server = own_redis()
    async with open_redis_journal(server.url) as journal, raw(server.url) as client:
        await client.config_set("maxmemory", 1)
        for n in range(3):
            journal.keep(f"e:{n}", {"value": "private"})
        await until(lambda: journal.counters.dropped == 3)
        await client.config_set("maxmemory", 0)
        journal.keep("after", {"value": 2})
        assert await journal.find("after") == {"value": 2}
        assert await journal.find("e:0") is None
    assert (count_records(caplog, GONE), count_records(caplog, BACK)) == (1, 1)
    assert "private" not in "".join(str(vars(record)) for record in caplog.records)


async def test_a_primary_that_became_a_replica_is_left_for_the_new_one(
    own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection stays open after a failover, and would refuse every result from then on."""
    monkeypatch.setattr(redis_client, "RENEW_S", 0.0)
    caplog.set_level("INFO")
    old, new = own_redis(), own_redis()
    async with (
        FaultProxy.to(old.url) as proxy,
        raw(old.url) as client,
        open_redis_journal(proxy.through(old.url)) as journal,
    ):
        journal.keep("before", {"value": 1})
        await until(lambda: journal.counters.kept == 1)
        proxy._upstream = FaultProxy.to(new.url)._upstream
        await client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]
        async with asyncio.timeout(LIMIT_S):
            while await journal.find("after") is None:
                journal.keep("after", {"value": 2})
    assert (count_records(caplog, GONE), count_records(caplog, BACK)) == (1, 1)


async def test_a_replica_without_its_primary_is_not_a_damaged_result(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses reads, too: that is an outage."""
    server = own_redis()
    async with open_redis_journal(server.url) as journal, raw(server.url) as client:
        await client.config_set("replica-serve-stale-data", "no")
        await client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]

        assert await journal.find("e") is None
    assert (count_records(caplog, GONE), count_records(caplog, DAMAGED)) == (1, 0)


async def test_no_error_of_the_client_ends_the_host(
    redis_server: TestRedis, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one while a lost connection is put away."""
    problems = [RuntimeError("of its own call"), RuntimeError("of ours")]
    disconnect = Connection.disconnect

    async def fails_first(connection: Connection, nowait: bool = False, **more: Any) -> None:
        await disconnect(connection, nowait, **more)
        if problems:
            raise problems.pop()

    async with (
        open_redis_journal(redis_server.url, namespace=space, ttl_s=60) as journal,
        raw(redis_server.url) as client,
        asyncio.timeout(LIMIT_S),
    ):
        journal.keep("e", {"value": 1})
        await until(lambda: journal.counters.kept == 1)
        monkeypatch.setattr(Connection, "disconnect", fails_first)
        [mine] = [info["id"] for info in await client.client_list() if info["cmd"] == "set"]
        await client.client_kill_filter(_id=mine)
        while await journal.find("e") != {"value": 1}:
            pass
    assert problems == []


@pytest.mark.item(144)
async def test_a_server_that_does_not_answer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Opening warns, with the address and without the password; all calls work and find nothing."""
    async with open_redis_journal("redis://me:secret@127.0.0.1:1/0") as journal:
        journal.keep("e", {"value": 1})

        assert await journal.find("e") is None
    assert count_records(caplog, "Redis does not answer; going on without it until it does") == 1
    text = "".join(str(vars(record)) for record in caplog.records)
    assert "redis://127.0.0.1:1/0" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://me:secret@host",
        "redis://me:se/cret@host:6379",
        "redis://me:se#cret@host:6379",
        "redis://me:sec?ret@host:6379/0",
        "redis://me:secret@host:port/0",
        "redis://me:secret@host:1/0?socket_timeout=secret",
        "redis://me:secret@host:1/0?nonsense=secret",
    ],
)
async def test_a_malformed_url_is_refused_with_the_remedy(url: str) -> None:
    """Neither the text nor the error's parts show what could be a password."""
    with pytest.raises(RedisUrlError, match="Write redis://") as exc_info:
        async with open_redis(url):
            pass

    error = exc_info.value
    assert isinstance(error, ContractError)
    text = (
        f"{error} {error!r} {vars(error)} {error.__cause__!r} {pickle.loads(pickle.dumps(error))}"
    )
    assert "cret" not in text
    assert "sec?" not in text


async def test_a_refused_password_or_database_is_an_error(own_redis: OwnRedis) -> None:
    """Waiting does not help."""
    server = own_redis(durable=True)
    wrong = server.url.replace("redis://:", "redis://:x")
    none = f"redis://127.0.0.1:{server.port}/0"

    for url in (wrong, none):
        with pytest.raises(RedisUrlError, match="refuse") as exc_info:
            async with open_redis(url):
                pass
        assert wrong.split("@", maxsplit=1)[0][9:] not in str(exc_info.value)
    with pytest.raises(RedisUrlError, match="DB index"):
        async with open_redis(server.url.removesuffix("0") + "99"):
            pass


async def test_a_namespace_is_a_name(redis_server: TestRedis) -> None:
    """It is part of every key."""
    with pytest.raises(InvalidNameError):
        async with open_redis_journal(redis_server.url, namespace="a b"):
            pass


async def test_a_journal_without_redis_records_nothing_and_raises_nothing(
    own_redis: OwnRedis,
) -> None:
    """As a part of a runtime, too, it is beside the log."""
    server = own_redis()
    async with open_redis_journal(server.url) as journal:
        await asyncio.to_thread(server.kill)

        await journal.record(EffectResult("e", "ok", 1))

        assert await journal.lookup("e") is None


async def test_it_closes_at_any_moment(redis_server: TestRedis, space: str) -> None:
    """Also in the middle of a round trip, where the driver may swallow that it is cancelled."""
    async with asyncio.timeout(LIMIT_S):
        for moment in range(60):
            async with open_redis_journal(redis_server.url, namespace=space) as journal:
                for n in range(3):
                    journal.keep(f"e:{moment}:{n}", {"value": n})
                    for _ in range(moment // 3):
                        await asyncio.sleep(0)


async def test_opening_waits_a_second_at_most(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture, patience: pytest.MonkeyPatch
) -> None:
    """A frozen server is like one that is not there."""
    server = own_redis()
    patience.setattr(ANSWER, ANSWER_S)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        start_s = time.perf_counter()
        async with open_redis_journal(server.url):
            waited_s = time.perf_counter() - start_s
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert waited_s < ANSWER_S + BUSY_S
    assert count_records(caplog, "Redis does not answer; going on without it until it does") == 1
