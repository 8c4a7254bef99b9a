"""RedisHistoryProvider against a real Valkey: a session is whole, or it is an error, whatever Redis loses."""

from __future__ import annotations

import asyncio
import pickle
import secrets
from typing import TYPE_CHECKING, Any, Final

import pytest
from redis.asyncio import Redis

from actors import ContextConfig, Runtime
from actors._kernel.agent.message import ChatMessage
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RetryPolicy
from actors.errors import ContractError, HistoryLostError, PersistenceError, RunFailedError
from actors.testing import ScriptedModel
from persistence._redis import history as histories
from persistence._redis.history import READ
from persistence.redis import (
    RedisHistoryProvider,
    RedisRefusedError,
    RedisUnreachableError,
    open_redis,
    open_redis_history,
)
from tests.harness.servers import wipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tests.harness.servers import OwnRedis, TestRedis

DESK: Final = AgentId("desk", "1")
ACME: Final = AgentId("desk", "1", "acme")
LIMIT_S: Final = 20.0
S: Final[dict[str, Any]] = {"session_id": "s"}


@pytest.fixture
def space() -> str:
    """A namespace that no other test uses."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
async def redis(redis_server: TestRedis) -> AsyncIterator[Redis]:
    """A client, to look at what is stored and to take it away."""
    async with open_redis(redis_server.url) as client:
        yield client


@pytest.fixture
def history(redis: Redis, space: str) -> RedisHistoryProvider:
    """A provider of its own namespace."""
    return RedisHistoryProvider(redis, namespace=space)


@pytest.fixture
def other(redis: Redis, space: str) -> RedisHistoryProvider:
    """The provider of another process on the same namespace."""
    return RedisHistoryProvider(redis, namespace=space)


def turns(*names: object) -> list[ChatMessage]:
    """Turns whose text is their id."""
    return [
        ChatMessage.of("user", str(name)).model_copy(update={"metadata": {"turn": str(name)}})
        for name in names
    ]


async def texts(provider: RedisHistoryProvider, **page: Any) -> str:
    """What is kept of the session, or of a page of it."""
    return "".join(turn.text for turn in await provider.get_messages(DESK, **S, **page))


async def expire(redis: Redis, provider: RedisHistoryProvider) -> None:
    """Let the session be as Redis leaves it when its time has come."""
    turns_key, mark = provider.keys_of(DESK, "s")
    await redis.pexpireat(turns_key, 1)
    await redis.hset(mark, "expires", "1")


async def list_problems(*calls: Awaitable[object]) -> list[str]:
    """What each of the calls says is lost."""
    problems = []
    for call in calls:
        with pytest.raises(HistoryLostError) as exc_info:
            await call
        problems.append(exc_info.value.problem)
    return problems


class Between:
    """A client whose scripts are followed by something: `then` gets the number of READs so far."""

    def __init__(self, redis: Redis, then: Callable[[int], Awaitable[object]]) -> None:
        self._redis, self._then = redis, then
        self.reads = 0

    def register_script(self, text: str) -> Callable[..., Awaitable[Any]]:
        """As the client does."""
        script = self._redis.register_script(text)

        async def call(*, keys: Sequence[str], args: Sequence[Any]) -> Any:
            reply = await script(keys=keys, args=args)
            if text == READ:
                self.reads += 1
                await self._then(self.reads)
            return reply

        return call


class Resending:
    """A client that never gets the first answer, and sends everything again."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def register_script(self, text: str) -> Callable[..., Awaitable[Any]]:
        """As the client does."""
        script = self._redis.register_script(text)

        async def call(*, keys: Sequence[str], args: Sequence[Any]) -> Any:
            await script(keys=keys, args=args)
            return await script(keys=keys, args=args)

        return call


@pytest.mark.item(282, 284)
async def test_a_session_that_was_evicted_is_an_error(
    redis: Redis, history: RedisHistoryProvider, other: RedisHistoryProvider
) -> None:
    """For who wrote it and for every other process, reading, counting and adding; until it is cleared."""
    await history.append_many(DESK, turns(0, 1), **S)
    await redis.delete(history.keys_of(DESK, "s")[0])

    for provider in (history, other):
        problems = await list_problems(
            provider.get_messages(DESK, **S),
            provider.get_messages(DESK, **S, limit=1, offset=7),
            provider.count_messages(DESK, **S),
            provider.append_many(DESK, turns(2), **S),
        )
        assert all("evicted" in problem for problem in problems)
        await provider.clear_run(DESK, **S, run_id="r")
    await other.clear(DESK, **S)
    await history.append_many(DESK, turns(3), **S)

    assert await texts(history) == await texts(other) == "3"


@pytest.mark.item(284)
@pytest.mark.parametrize("field", ["t1", "m1", "i" + "g1", "count", "began"])
async def test_a_session_with_a_part_missing_is_an_error(
    redis: Redis, history: RedisHistoryProvider, field: str
) -> None:
    """Also for a page that has all of its turns."""
    await history.append_many(DESK, turns(0, 1, 2), **S)
    await redis.hdel(history.keys_of(DESK, "s")[0], field)

    problems = await list_problems(
        history.get_messages(DESK, **S, limit=1),
        history.count_messages(DESK, **S),
        history.append_many(DESK, turns(3), **S),
        history.clear_run(DESK, **S, run_id="r"),
    )

    assert {*problems} == {"a part of it is missing or was changed"}


@pytest.mark.item(284)
async def test_a_turn_that_cannot_be_read_is_an_error(
    redis: Redis, history: RedisHistoryProvider
) -> None:
    """Somebody wrote over it."""
    await history.append_many(DESK, turns(0, 1), **S)
    for text in ("{", '{"role":"boss"}'):
        await redis.hset(history.keys_of(DESK, "s")[0], "t1", text)

        assert "missing or was changed" in str(await list_problems(history.get_messages(DESK, **S)))


@pytest.mark.item(282, 284)
async def test_an_eviction_by_a_full_redis_never_shortens_a_session(
    own_redis: OwnRedis, space: str
) -> None:
    """Each of many sessions is whole, or lost."""
    async with open_redis(own_redis().url) as redis:
        history = RedisHistoryProvider(redis, namespace=space)
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        used = (await redis.info("memory"))["used_memory"]
        await redis.config_set("maxmemory", used + 1_500_000)
        lost_sessions = 0
        for at in range(60):
            for part in range(2):
                message = ChatMessage.of("user", f"{part}" + "x" * 40_000)
                try:
                    await history.append(DESK, message, session_id=f"{at}")
                except HistoryLostError:
                    lost_sessions += 1
        for at in range(60):
            try:
                stored_turns = await history.get_messages(DESK, session_id=f"{at}")
            except HistoryLostError:
                lost_sessions += 1
            else:
                assert [turn.text[0] for turn in stored_turns] == ["0", "1"]

        assert lost_sessions
        assert (await redis.info("stats"))["evicted_keys"] > 0


@pytest.mark.item(284)
async def test_a_session_ends_as_a_whole_when_its_time_is_over(
    redis: Redis, space: str, history: RedisHistoryProvider
) -> None:
    """By Redis's own clock, and by the TTL of the last append: then it has no turns, and begins anew."""
    hasty = RedisHistoryProvider(redis, namespace=space, ttl_s=0.001)
    await history.append_many(DESK, turns(0, 1), **S)
    await hasty.append_many(DESK, turns(1), **S)
    async with asyncio.timeout(LIMIT_S):
        while await redis.exists(history.keys_of(DESK, "s")[0]):  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0)

    for provider in (hasty, history):
        assert await provider.count_messages(DESK, **S) == 0
        assert await texts(provider) == ""
    await history.append_many(DESK, turns(1), **S)
    assert await texts(history) == "1"


@pytest.mark.item(284)
async def test_a_session_that_expires_between_two_pages_is_an_error(
    redis: Redis, history: RedisHistoryProvider, other: RedisHistoryProvider
) -> None:
    """A page behind the first one is not empty, and not that of the session that came after."""
    await history.append_many(DESK, turns(0, 1, 2), **S)
    assert await texts(history, limit=2) == "01"
    await expire(redis, history)
    for provider in (history, other):
        assert await list_problems(provider.get_messages(DESK, **S, limit=2, offset=2)) == [
            "it expired between two pages"
        ]
        assert await texts(provider) == ""
    await other.append_many(DESK, turns(7, 8, 9), **S)
    assert await texts(other, offset=2) == "9"
    assert "lost it" in str(await list_problems(history.get_messages(DESK, **S, limit=2, offset=2)))


@pytest.mark.item(284)
async def test_an_append_gives_the_whole_session_its_time_anew(
    redis: Redis, history: RedisHistoryProvider
) -> None:
    """One that brings nothing new does, too; a read does not. The mark outlives the session."""
    turns_key, mark = history.keys_of(DESK, "s")
    await history.append_many(DESK, turns(0), **S)
    for batch, is_renewed in ((turns(1), True), (turns(1), True), ([], False)):
        await redis.pexpire(turns_key, 50_000)
        await history.append_many(DESK, batch, **S)
        await history.get_messages(DESK, **S)
        await history.clear_run(DESK, **S, run_id="r")

        remaining_ms = await redis.pttl(turns_key)
        assert (remaining_ms > 100_000) == is_renewed
        assert await redis.pttl(mark) > remaining_ms


@pytest.mark.item(284)
@pytest.mark.parametrize("loss", ["expire", "evict", "flush", "clear", "clear_run", "append"])
async def test_a_change_during_a_read_is_detected(
    redis: Redis, other: RedisHistoryProvider, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """A long session comes in parts: all of it comes, or what was cleared does not, or it is an error."""
    monkeypatch.setattr(histories, "PART_BYTES", 1)

    async def then(reads: int) -> None:
        if reads != 2:
            return
        if loss == "expire":
            await expire(redis, other)
        elif loss in ("evict", "flush"):
            await redis.delete(*other.keys_of(DESK, "s")[: 1 if loss == "evict" else 2])
        elif loss == "clear":
            await other.clear(DESK, **S)
        elif loss == "clear_run":
            await other.clear_run(DESK, **S, run_id="a")
        else:
            await other.append_many(DESK, turns(4), **S)

    await other.append_many(DESK, turns(0, 1), **S, run_id="a")
    await other.append_many(DESK, turns(2, 3), **S, run_id="b")
    reader = RedisHistoryProvider(Between(redis, then), namespace=other.namespace)  # type: ignore[arg-type]

    if loss in ("expire", "evict", "flush"):
        await list_problems(reader.get_messages(DESK, **S))
    else:
        texts_by_loss = {"clear": "", "clear_run": "23", "append": "01234"}
        assert await texts(reader) == texts_by_loss[loss]


@pytest.mark.item(284)
async def test_a_flushed_redis_is_detected_by_users_of_the_session(
    redis: Redis, space: str, history: RedisHistoryProvider, other: RedisHistoryProvider
) -> None:
    """Also when somebody who cannot know has begun it anew. Who clears it heals it for all."""
    await history.append_many(DESK, turns(0, 1, 2), **S)
    await redis.delete(*history.keys_of(DESK, "s"))

    assert "lost it" in str(
        await list_problems(
            history.get_messages(DESK, **S), history.append_many(DESK, turns(3), **S)
        )
    )
    assert await texts(other) == ""
    await other.append_many(DESK, turns(3), **S)
    assert await texts(other) == "3"
    assert "lost it" in str(await list_problems(history.get_messages(DESK, **S)))
    third = RedisHistoryProvider(redis, namespace=space)
    await third.clear(DESK, **S)

    assert await texts(history) == await texts(other) == ""
    await history.append_many(DESK, turns(4), **S)
    assert await texts(history) == await texts(other) == "4"


@pytest.mark.item(284)
async def test_a_replica_that_takes_over_without_the_last_turns_is_noticed(
    redis: Redis, history: RedisHistoryProvider, other: RedisHistoryProvider
) -> None:
    """By who added them or read them."""
    key = history.keys_of(DESK, "s")[0]
    await history.append_many(DESK, turns(0, 1), **S)
    before = await redis.dump(key)
    assert before is not None
    await other.append_many(DESK, turns(2), **S)
    await redis.restore(key, 60_000, before, replace=True)

    assert await texts(history) == "01"
    assert "newest turns" in str(await list_problems(other.get_messages(DESK, **S, limit=1)))


@pytest.mark.item(284)
async def test_a_restart_keeps_the_session_and_one_without_data_loses_it(
    own_redis: OwnRedis, space: str
) -> None:
    """The provider goes on over both; away, the server is an error that may be tried again."""
    server = own_redis()
    async with open_redis_history(server.url, namespace=space) as history:
        await history.append_many(DESK, turns(0), **S)
        await asyncio.to_thread(server.kill)
        for call in (history.append_many(DESK, turns(1), **S), history.get_messages(DESK, **S)):
            with pytest.raises(RedisUnreachableError, match="Check that the server runs") as away:
                await call
            assert away.value.retryable
        await asyncio.to_thread(server.start)
        await history.append_many(DESK, turns(1), **S)
        assert await texts(history) == "01"

        await asyncio.to_thread(server.stop)
        wipe(server)
        await asyncio.to_thread(server.start)

        await list_problems(
            history.get_messages(DESK, **S), history.append_many(DESK, turns(2), **S)
        )
        await history.append_many(DESK, turns(2), session_id="another")
        await history.clear(DESK, **S)
        assert await texts(history) == ""


@pytest.mark.item(282)
async def test_a_redis_without_room_takes_all_of_a_batch_or_nothing(
    own_redis: OwnRedis, space: str
) -> None:
    """It is an error, and no turn of the session goes for it."""
    async with open_redis(own_redis().url) as redis:
        history = RedisHistoryProvider(redis, namespace=space)
        await history.append_many(DESK, turns(0), **S)
        await redis.config_set("maxmemory", 1)
        with pytest.raises(RedisRefusedError, match="maxmemory") as exc_info:
            await history.append_many(DESK, turns(1, 2), **S)
        assert isinstance(exc_info.value, PersistenceError)
        assert await texts(history) == "0"
        await redis.config_set("maxmemory", 0)
        await history.append_many(DESK, turns(1, 2), **S)

        assert await texts(history) == "012"


@pytest.mark.item(286)
async def test_a_repeated_append_is_stored_once(redis: Redis, space: str) -> None:
    """A turn without an id, too; and of two equal ones in a batch both are."""
    history = RedisHistoryProvider(Resending(redis), namespace=space)  # type: ignore[arg-type]
    yes = ChatMessage.of("user", "y")

    await history.append_many(DESK, [yes, *turns(0), yes], **S)
    await history.append(DESK, yes, **S)

    stored_turns = await history.get_messages(DESK, **S)
    assert "".join(turn.text for turn in stored_turns) == "y0yy"
    assert [turn.metadata for turn in stored_turns] == [{}, {"turn": "0"}, {}, {}]


@pytest.mark.item(277, 286)
async def test_two_writers_of_a_session_keep_their_batches_whole(
    history: RedisHistoryProvider, other: RedisHistoryProvider
) -> None:
    """Each batch is in one piece and in order; those that both write are there once."""
    async with asyncio.TaskGroup() as group:
        for ten in range(10, 90, 10):
            batch = turns(*range(ten, ten + 5))
            for writer in (history, other) if ten % 20 else (history,):
                group.create_task(writer.append_many(DESK, batch, **S))

    numbers = [int(turn.text) for turn in await other.get_messages(DESK, **S)]
    assert sorted(numbers) == [n for ten in range(10, 90, 10) for n in range(ten, ten + 5)]
    assert all(
        numbers[at : at + 5] == list(range(numbers[at], numbers[at] + 5)) for at in range(0, 40, 5)
    )


@pytest.mark.item(280)
async def test_runs_that_are_cleared_beside_each_other_leave_the_others(
    history: RedisHistoryProvider, other: RedisHistoryProvider
) -> None:
    """Turns move up as often as it takes, and new ones come behind them."""
    for name in range(60):
        await history.append_many(DESK, turns(name), **S, run_id=f"r{name % 6}")
    async with asyncio.TaskGroup() as group:
        for run in (0, 2, 4):
            group.create_task(history.clear_run(DESK, **S, run_id=f"r{run}"))
            group.create_task(other.append_many(DESK, turns(100 + run), **S, run_id="new"))

    numbers = [int(turn.text) for turn in await other.get_messages(DESK, **S)]
    assert numbers[:30] == [name for name in range(60) if name % 6 in (1, 3, 5)]
    assert sorted(numbers[30:]) == [100, 102, 104]


@pytest.mark.item(282)
async def test_a_turn_of_ten_megabytes_comes_back(history: RedisHistoryProvider) -> None:
    """With NUL and every other character, beside small ones."""
    text = "".join(map(chr, range(0x2000))) + "x" * 10_000_000
    long = ChatMessage.of("tool", text)
    await history.append_many(DESK, [*turns(0), long, *turns(1)], **S)

    stored_turns = await history.get_messages(DESK, **S)
    assert stored_turns == [*turns(0), long, *turns(1)]


async def test_names_that_look_like_others_are_others(history: RedisHistoryProvider) -> None:
    """Of agents, sessions, tenants and turns."""
    places = [
        (AgentId("a", "b:c"), "d"),
        (AgentId("a", "b"), "c:d"),
        (AgentId("a", "b"), "c%3Ad"),
        (AgentId("a", "b"), "{c}:turns"),
        (AgentId("b", "b", "a"), "c:d"),
        (DESK, "s"),
        (ACME, "s"),
    ]
    for at, (agent, session) in enumerate(places):
        await history.append_many(agent, turns(at), session_id=session)

    assert len({key for key_parts in places for key in history.keys_of(*key_parts)}) == 2 * len(
        places
    )
    for at, (agent, session) in enumerate(places):
        stored_turns = await history.get_messages(agent, session_id=session)
        assert [turn.text for turn in stored_turns] == [str(at)]
    await history.append_many(DESK, turns("count", "0:1", "t0", "a\0b"), **S)
    assert await history.count_messages(DESK, **S) == 5


@pytest.mark.parametrize("bad", ["\0", "\ud800", "x" * 2_000])
async def test_a_name_that_cannot_be_kept_is_refused(
    history: RedisHistoryProvider, bad: str
) -> None:
    """As the other stores refuse it."""
    for call in (
        history.append(DESK, turns(0)[0], session_id=bad),
        history.append(DESK, turns(0)[0], **S, run_id=bad),
        history.get_messages(DESK, session_id=bad),
        history.clear(DESK, session_id=bad),
        history.clear_run(DESK, **S, run_id=bad),
    ):
        with pytest.raises(ContractError):
            await call


async def test_a_time_to_live_is_one(redis: Redis) -> None:
    """Not nothing, not for ever; and a namespace is a name."""
    for ttl_s in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ContractError, match="give seconds"):
            RedisHistoryProvider(redis, ttl_s=ttl_s)
    with pytest.raises(ContractError):
        RedisHistoryProvider(redis, namespace="a:b")


async def test_a_provider_remembers_so_many_sessions(
    redis: Redis, history: RedisHistoryProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it used last. Of the others only Redis knows."""
    monkeypatch.setattr(histories, "SESSIONS_REMEMBERED", 2)
    for session in "abac":
        await history.append_many(DESK, turns(session), session_id=session)
    for session in "abc":
        await redis.delete(*history.keys_of(DESK, session))

    assert await history.count_messages(DESK, session_id="b") == 0
    for session in "ac":
        await list_problems(history.count_messages(DESK, session_id=session))


def test_an_error_has_a_remedy_and_survives_pickling() -> None:
    """It is not tried again."""
    error = HistoryLostError("desk/1", "s", "it is gone")

    again = pickle.loads(pickle.dumps(error))

    assert str(again) == str(error)
    assert str(error).startswith("session 's' of desk/1: it is gone. `clear` it")
    assert not error.retryable


@pytest.mark.item(284)
async def test_a_run_whose_session_is_lost_asks_no_model(
    redis: Redis, history: RedisHistoryProvider
) -> None:
    """It fails with the error, and with a cleared session the next one begins anew."""

    class Tutor:
        id = AgentId("tutor", "1")
        model = ScriptedModel("one", "two")
        context = ContextConfig(history)

        async def run(self, ctx: Any, inbox: Any) -> str:
            return str((await ctx.generate(inbox[0].payload, session="s")).text)

    async def ask(runtime: Runtime, text: str) -> object:
        policy = RetryPolicy(max_retries=0)
        return await runtime.result(await runtime.submit(Tutor.id, text, retry_policy=policy))

    async with Runtime() as runtime:
        await runtime.register(Tutor())
        assert await ask(runtime, "a") == "one"
        await redis.delete(history.keys_of(Tutor.id, "s")[0])
        with pytest.raises(RunFailedError, match="evicted"):
            await ask(runtime, "b")
        await history.clear(Tutor.id, session_id="s")
        assert await ask(runtime, "c") == "two"

    stored_turns = await history.get_messages(Tutor.id, session_id="s")
    assert [turn.text for turn in stored_turns] == ["c", "two"]


async def test_an_erase_reaches_sessions_in_redis(
    redis: Redis, history: RedisHistoryProvider, space: str
) -> None:
    """Given by `also=`: a session, an agent, a tenant; others keep theirs, and no key has the text."""
    runtime, clerk = Runtime(), AgentId("desk", "1:2 *", "acme")
    for agent, name in ((DESK, "s"), (ACME, "s"), (ACME, "t:*"), (clerk, "s")):
        await history.append(agent, ChatMessage.of("user", "canary"), session_id=name)

    async def count_turns() -> list[int]:
        places = ((DESK, "s"), (ACME, "s"), (ACME, "t:*"), (clerk, "s"))
        return [await history.count_messages(who, session_id=name) for who, name in places]

    report = await runtime.erase(tenant="acme", dry_run=True, also=[history])
    assert report.counts["redis history"] == {"sessions": 3}
    await runtime.erase(tenant="acme", agent=ACME, session="t:*", also=[history])
    assert await count_turns() == [1, 1, 0, 1]
    await runtime.erase(tenant="acme", agent=ACME, also=[history])
    assert await count_turns() == [1, 0, 0, 1]
    await runtime.erase(tenant="acme", also=[history])
    assert await count_turns() == [1, 0, 0, 0]
    await runtime.erase(tenant="default", also=[history])
    assert await count_turns() == [0, 0, 0, 0]
    keys = [key async for key in redis.scan_iter(f"{space}:*")]
    values = [value for key in keys for value in await redis.hvals(key)]
    assert keys
    assert not any("canary" in str(value) for value in values)
