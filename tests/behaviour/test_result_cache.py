"""The result cache: results that a crash kept out of the log are found there and recorded.

In virtual time the cache is a dict of this test; on PostgreSQL it is a RedisJournal on a Valkey.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import pytest
from pydantic_core import from_json, to_json
from redis.asyncio import Redis

from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.effects import result_key
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors.errors import EffectInDoubtError, RetryAfter
from persistence.redis import open_redis_journal
from tests.behaviour.agents import greeter
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from actors._kernel.agent.message import Message
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.effects import ResultCache
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import RunContext
    from actors.testing import ScriptedModel
    from compose.embedded import ValkeyServer
    from persistence.redis import RedisJournal
    from tests.behaviour.bed import Bed

K = EntryKind

Verb: TypeAlias = Literal["at_most_once", "tool", "llm"]


class Caches(Protocol):
    """Caches that survive hosts."""

    async def open(self) -> ResultCache:
        """Open the cache as another process would."""
        ...

    async def keys(self) -> list[str]:
        """Return the cached keys of all hosts."""
        ...

    async def lose_all(self) -> None:
        """Delete all entries."""
        ...


@dataclass
class DictCaches:
    """See `Caches`. One dict, which is also the `ResultCache` of every host."""

    texts: dict[str, bytes] = field(default_factory=dict)

    def keep(self, key: str, payload: dict[str, JsonValue]) -> None:
        """See `ResultCache.keep`."""
        self.texts.setdefault(key, to_json(payload))

    async def find(self, key: str) -> dict[str, JsonValue] | None:
        """See `ResultCache.find`."""
        record: dict[str, JsonValue] | None = from_json(self.texts.get(key, b"null"))
        return record

    async def open(self) -> ResultCache:
        """See `Caches.open`."""
        return self

    async def keys(self) -> list[str]:
        """See `Caches.keys`."""
        return list(self.texts)

    async def lose_all(self) -> None:
        """See `Caches.lose_all`."""
        self.texts.clear()


@dataclass
class RedisCaches:
    """Caches on a Valkey of this test alone, with a journal per host. See `Caches`."""

    server: ValkeyServer
    _opened: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def open(self) -> RedisJournal:
        """See `Caches.open`."""
        return await self._opened.enter_async_context(open_redis_journal(self.server.url))

    async def keys(self) -> list[str]:
        """See `Caches.keys`."""
        async with Redis.from_url(self.server.url) as client:
            names = await client.keys()
        return [str(name) for name in names]

    async def lose_all(self) -> None:
        """See `Caches.lose_all`."""
        async with Redis.from_url(self.server.url) as client:
            await client.flushall()

    async def close(self) -> None:
        """Close the opened journals."""
        await self._opened.aclose()


@dataclass
class Watched:
    """A `ResultCache` that records its look-ups."""

    cache: ResultCache
    looks: list[str]

    def keep(self, key: str, payload: dict[str, JsonValue]) -> None:
        """See `ResultCache.keep`."""
        self.cache.keep(key, payload)

    async def find(self, key: str) -> dict[str, JsonValue] | None:
        """See `ResultCache.find`."""
        self.looks.append(key)
        return await self.cache.find(key)


def _is_a_runs(*args: object) -> bool:
    """Return whether a call of the store is a commit of a run; hosts make other calls at any time."""
    return bool(args) and isinstance(args[0], Commit | Lease)


@dataclass
class Doom:
    """A bed whose host can be told to crash at the next write of a run."""

    bed: Bed
    caches: Caches
    faults: Faults = field(
        default_factory=lambda: Faults(manner=Manner.DIE_BEFORE, wanted=_is_a_runs)
    )
    died: asyncio.Event = field(default_factory=asyncio.Event)
    looks: list[str] = field(default_factory=list)

    def now(self) -> None:
        """Crash this host at the next write of a run. Called inside an effect."""
        self.died.clear()
        self.faults.nth = len(self.faults.calls)

    def wrap(self) -> None:
        """Give all hosts that start from now on a store that crashes on demand."""
        self.bed.go_wrong(self.faults, self.died.set)

    async def start(self, *, cached: bool = True) -> None:
        """Crash the host, if it is alive, and start one with the cache or without."""
        results = Watched(await self.caches.open(), self.looks) if cached else None
        await self.bed.restart(results=results)

    async def recover(self, *, cached_count: int, cached: bool = True) -> None:
        """Wait until the host is dead and this many results are cached; start another one."""
        await self.dead(cached_count=cached_count)
        await self.start(cached=cached)

    async def dead(self, *, cached_count: int) -> None:
        """Return when the host is dead and this many results are cached."""
        async with asyncio.timeout(20):
            await self.died.wait()
        await self.holds(cached_count)

    async def holds(self, count: int) -> None:
        """Return when the cache holds this many results; no other code awaits its writes."""
        async with asyncio.timeout(20):
            while len(await self.caches.keys()) < count:  # noqa: ASYNC110 - Redis announces nothing
                await asyncio.sleep(0.001)
        assert len(await self.caches.keys()) == count


@pytest.fixture
async def doom(
    bed: Bed, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Doom]:
    """Yield a bed whose host caches results and can be crashed; no answer of the cache comes too late."""
    monkeypatch.setattr("persistence._redis.journal.LOOKUP_LIMIT_S", 20.0)
    monkeypatch.setattr("persistence._redis.client.ANSWER_S", 20.0)
    caches: DictCaches | RedisCaches = DictCaches()
    if bed.backend != "memory":
        caches = RedisCaches(request.getfixturevalue("own_redis")())
    doom = Doom(bed, caches)
    doom.wrap()
    await doom.start()
    yield doom
    await bed.crash()  # a test that failed may leave a dead host: it would not stop
    if isinstance(caches, RedisCaches):
        await caches.close()


def doomed_model(on_answer: Callable[[int], None]) -> ScriptedModel:
    """Return a model that calls `on_answer` with the number of the call before it returns the answer."""

    async def answered() -> None:
        on_answer(model.calls)

    model = greeter("Hello there", between=answered)
    return model


async def _serve(doom: Doom, verb: Verb, *, error: type[Exception] | None = None) -> AgentId:
    """Serve an agent with one effect between two steps; the first time its host crashes after the effect."""
    bed = doom.bed

    async def happen(amount: int) -> object:
        bed.world.count[verb] += 1
        if bed.world.count[verb] == 1:
            doom.now()
        if error is not None:
            raise error("no")
        return {"receipt": amount, "floats": [1.0, 2.5e10], "text": "é"}

    def answered(calls: int) -> None:
        bed.world.count[verb] = calls
        if calls == 1:
            doom.now()

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        value: object
        if verb == "llm":
            value = (await ctx.llm("hi")).model_dump(mode="json")
        elif verb == "tool":
            value = (await ctx.tool("happen", amount=5)).model_dump(mode="json")
        else:
            value = await ctx.step("happen", happen, 5, effect=verb)
        return [value, await ctx.step("after", bed.world.do, "after", "after")]

    tools = [Tool("happen", "Happens.", happen)]
    return await bed.serve(act, model=doomed_model(answered), tools=tools)


async def _entries_without_ids(bed: Bed, run_id: RunId) -> list[object]:
    """Return the run's log without ids, which differ between runs."""
    aside = (K.RUN_STARTED, K.MSG_RECEIVED, K.RUN_RESUMED, K.RUN_SUSPENDED)
    return [
        (entry.kind, entry.position, {k: v for k, v in entry.payload.items() if k != "id"})
        for entry in await bed.log(run_id)
        if entry.kind not in aside
    ]


@pytest.mark.parametrize("verb", ["at_most_once", "tool", "llm"])
async def test_a_result_that_missed_the_log_is_found(doom: Doom, verb: Verb) -> None:
    """It is recorded like a new result: the log is that of a run without a crash."""
    bed = doom.bed
    agent = await _serve(doom, verb)
    run_id = await bed.submit(agent)
    await doom.recover(cached_count=1)

    crashed = await bed.result(run_id)

    assert bed.world.count[verb] == 1
    assert bed.world.count["before"] == bed.world.count["after"] == 1
    undisturbed = await bed.submit(agent)
    assert await bed.result(undisturbed) == crashed
    assert await _entries_without_ids(bed, run_id) == await _entries_without_ids(bed, undisturbed)


async def test_an_error_is_a_result_too(doom: Doom) -> None:
    """An at-most-once effect that raised has an outcome: the run ends by it and is not in doubt."""
    bed = doom.bed
    run_id = await bed.submit(await _serve(doom, "at_most_once", error=ConnectionError))
    await doom.recover(cached_count=1)

    row = await bed.ended(run_id)

    assert row.status is RunStatus.FAILED
    assert row.error is not None
    assert row.error["type"] == "builtins:ConnectionError"
    assert bed.world.count["at_most_once"] == 1


@pytest.mark.parametrize("crash_in", [1, 2])
@pytest.mark.parametrize("verb", ["at_most_once", "llm"])
async def test_a_new_attempt_wants_a_new_result(doom: Doom, verb: Verb, crash_in: int) -> None:
    """The error that ended an attempt is found by a recovery of that attempt, and not by the next attempt."""
    bed = doom.bed

    def happen(calls: int) -> None:
        bed.world.count[verb] = calls
        if calls == crash_in:
            doom.now()
        if calls == 1:
            raise RetryAfter(0.01)

    async def call() -> str:
        happen(bed.world.count[verb] + 1)
        return "Hello there"

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        if verb == "llm":
            return (await ctx.llm("hi")).text
        return str(await ctx.step("call", call, effect="at_most_once"))

    run_id = await bed.submit(await bed.serve(act, model=doomed_model(happen)))
    await doom.recover(cached_count=crash_in)

    assert await bed.result(run_id) == "Hello there"
    assert bed.world.count[verb] == 2
    results = await bed.log(run_id, K.EFFECT_RESULT, K.LLM_CALL)
    assert [e.payload["status"] for e in results if e.position == "1"] == ["error", "ok"]


@pytest.mark.item(141, 144)
@pytest.mark.parametrize("verb", ["at_most_once", "llm"])
async def test_without_the_cached_result_the_effect_is_in_doubt(doom: Doom, verb: Verb) -> None:
    """Without the result an at-most-once effect is in doubt, and a model is called again."""
    bed = doom.bed
    run_id = await bed.submit(await _serve(doom, verb))
    await doom.dead(cached_count=1)
    await doom.caches.lose_all()
    await doom.start()

    if verb == "llm":
        await bed.result(run_id)
        assert bed.world.count[verb] == 2
    else:
        parked = await bed.seen(run_id, K.RUN_PARKED)
        assert parked.payload["reason"] == "in_doubt"
        assert bed.world.count[verb] == 1
        await bed.runtime.cancel(run_id)


async def test_only_effects_that_may_have_started_are_looked_up(doom: Doom) -> None:
    """Never in a first attempt without a crash; after a crash, until the attempt has a result of its own."""
    bed = doom.bed

    async def act(ctx: RunContext, inbox: list[Message]) -> list[str]:
        del inbox
        await ctx.step("before", bed.world.do, "before", effect="at_most_once")
        return [(await ctx.llm(text)).text for text in ("one", "two", "three")]

    def answered(calls: int) -> None:
        if calls == 2:
            doom.now()

    run_id = await bed.submit(await bed.serve(act, model=doomed_model(answered)))
    async with asyncio.timeout(20):
        await doom.died.wait()
    assert doom.looks == []
    await doom.recover(cached_count=3)

    await bed.result(run_id)

    calls = await bed.log(run_id, K.LLM_CALL)
    assert doom.looks == [result_key(str(calls[1].payload["id"]), attempt=1)]


@pytest.mark.item(189)
async def test_an_effect_that_an_operator_repeats_has_its_own_result(doom: Doom) -> None:
    """The result of the first execution, found late, is not used for the second."""
    bed = doom.bed

    async def pay() -> str:
        bed.world.count["pay"] += 1
        doom.now()
        return f"receipt {bed.world.count['pay']}"

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        return await ctx.step("pay", pay, effect="at_most_once")

    run_id = await bed.submit(await bed.serve(act))
    await doom.recover(cached_count=1, cached=False)
    await bed.seen(run_id, K.RUN_PARKED)
    await doom.start()

    await bed.runtime.resolve(run_id, "1", action="retry")
    await doom.recover(cached_count=2)

    assert await bed.result(run_id) == "receipt 2"
    assert bed.world.count["pay"] == 2


@pytest.mark.item(189)
async def test_an_operators_decision_takes_precedence_over_a_cached_result(doom: Doom) -> None:
    """The operator knew the outcome of the effect at the decision."""
    bed = doom.bed
    run_id = await bed.submit(await _serve(doom, "at_most_once"))
    await doom.recover(cached_count=1, cached=False)
    await bed.seen(run_id, K.RUN_PARKED)
    await doom.start()

    await bed.runtime.resolve(run_id, "1", action="value", value="refunded")

    assert await bed.result(run_id) == ["refunded", "after"]


@pytest.mark.item(189)
async def test_reconcile_is_not_called_for_a_cached_result(doom: Doom) -> None:
    """It would ask a service about an effect whose result is known."""
    bed = doom.bed

    async def pay() -> str:
        doom.now()
        return "paid"

    async def reconcile(effect_id: str) -> str:
        raise AssertionError(effect_id)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        return await ctx.step("pay", pay, effect="at_most_once", reconcile=reconcile)

    run_id = await bed.submit(await bed.serve(act))
    await doom.recover(cached_count=1)

    assert await bed.result(run_id) == "paid"


async def test_each_branch_finds_its_own_result(doom: Doom) -> None:
    """Effects that ended before the crash, committed or not, count; only the one that hung is in doubt."""
    bed = doom.bed
    cached_count = 3

    async def call(n: int) -> int:
        bed.world.count[str(n)] += 1
        if n == cached_count:
            await asyncio.Event().wait()
        if n == 0:
            doom.now()  # nothing is written from here on, while the others still end
        return n

    async def reconcile(effect_id: str) -> str:
        del effect_id
        return "reconciled"

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        calls = (
            ctx.step(f"call {n}", call, n, effect="at_most_once", reconcile=reconcile)
            for n in range(cached_count + 1)
        )
        return await ctx.gather(*calls)

    run_id = await bed.submit(await bed.serve(act))
    await doom.recover(cached_count=cached_count)

    assert await bed.result(run_id) == [0, 1, 2, "reconciled"]
    assert bed.world.count == {"before": 1, "0": 1, "1": 1, "2": 1, "3": 1}


async def test_a_run_that_could_not_be_written_is_recovered_by_the_same_host(doom: Doom) -> None:
    """The store refuses a result; the run is loaded again, and its model is not called again."""
    bed = doom.bed
    doom.faults.manner, doom.faults.method = Manner.ERROR_BEFORE, "append"

    result = await bed.result(await bed.submit(await _serve(doom, "llm")))

    assert isinstance(result, list)
    assert doom.faults.struck
    assert bed.world.count["llm"] == 1


@pytest.mark.item(141)
async def test_a_cache_that_loses_all_entries_changes_nothing(doom: Doom) -> None:
    """All entries are lost between any two steps of a program; the outcome is that without a cache."""
    bed = doom.bed

    def once(calls: int) -> None:
        bed.world.count["llm"] = calls

    async def flushed(name: str) -> str:
        await doom.caches.lose_all()
        return str(await bed.world.do(name, name))

    async def body(ctx: RunContext) -> list[object]:
        results: list[object] = [await ctx.step("a", flushed, "a")]
        results.append(await ctx.step("b", flushed, "b", effect="at_most_once"))
        await doom.caches.lose_all()
        results.append((await ctx.llm("hi")).text)
        await doom.caches.lose_all()
        results.append((await ctx.tool("flushed", name="c")).text)
        results += await ctx.gather(
            ctx.step("d", flushed, "d", effect="at_most_once"), ctx.step("e", flushed, "e")
        )
        await ctx.step("f", flushed, "f")
        return results

    tools = [Tool("flushed", "Loses all.", flushed)]
    values = await bed.live_and_replayed(body, model=doomed_model(once), tools=tools)

    assert all(value == values[0] for value in values)
    assert values[0] == ["a", "b", "Hello there", "c", "d", "e"]
    assert all(count == 1 for count in bed.world.count.values())


async def test_results_of_idempotent_steps_are_not_cached(doom: Doom) -> None:
    """An idempotent step, a replay and a recorded result cause no write to the cache."""
    bed = doom.bed

    async def body(ctx: RunContext) -> object:
        await ctx.step("one", bed.world.do, "one")
        return await ctx.step("two", bed.world.do, "two", effect="at_most_once")

    await bed.live_and_replayed(body)

    assert len(await doom.caches.keys()) == 1


async def test_errors_of_interrupted_effects_are_not_cached(doom: Doom) -> None:
    """The late error of a closed branch is its reaction to the cancel, not the effect's outcome."""
    bed = doom.bed

    async def slow() -> str:
        try:
            bed.world.entered.set()
            return str(await bed.world.wait("never"))
        except asyncio.CancelledError:
            raise ConnectionError("cut off") from None

    async def quick() -> None:
        await bed.world.entered.wait()

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        won = await ctx.select(
            ctx.step("slow", slow, effect="at_most_once"), ctx.step("quick", quick)
        )
        await ctx.step("then", bed.world.do, "then")
        return won.index

    assert await bed.play(act) == 1
    assert await doom.caches.keys() == []


@pytest.mark.parametrize("other", ["another effect", "nothing"])
async def test_a_cached_result_of_another_effect_is_ignored(doom: Doom, other: str) -> None:
    """An entry with the right key that names another effect is not used: the effect stays in doubt."""
    bed = doom.bed

    async def pay() -> str:
        bed.world.entered.set()
        await asyncio.Event().wait()
        return "paid"

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        try:
            return await ctx.step("pay", pay, effect="at_most_once")
        except EffectInDoubtError:
            return "in doubt"

    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    [intent] = await bed.log(run_id, K.EFFECT_INTENT)
    payload = {k: v for k, v in intent.payload.items() if k != "mode"}
    payload |= {"status": "ok", "value": "paid"}
    if other == "another effect":
        payload["hash"] = "0" * 16
    else:
        payload = {}
    cache = await doom.caches.open()
    cache.keep(result_key(str(intent.payload["id"]), intent=intent.seq), payload)
    await doom.holds(1)
    await doom.start()

    assert await bed.result(run_id) == "in doubt"
