"""A host dies: the next one goes on, executes nothing twice that must not be, and says what it cannot know."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from actors.errors import EffectDidNotHappen, EffectError, EffectInDoubtError, RetryAfter
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.runtime.scheduler import RunStatus
from tests.harness.faulty_store import Faults, FaultyStore, Manner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.ids import HostIncarnation, RunId
    from actors.kernel.runtime.store import RunStore
    from actors.runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind


@pytest.mark.item(47, 172, 182, 186, 490)
async def test_a_running_run_is_taken_over(bed: Bed) -> None:
    """What was recorded is not executed again, what was not is; the log says that it was recovered."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        values = [await ctx.step(name, bed.world.do, name, name) for name in ("a", "b")]
        values.append(await ctx.step("c", bed.world.hang, "c", "c"))
        return [inbox[0].payload, *values, await ctx.step("d", bed.world.do, "d", "d")]

    run_id = await bed.submit(await bed.serve(act), "boot")
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    await bed.restart()
    assert await bed.result(run_id) == ["boot", "a", "b", "c", "d"]
    assert bed.world.count == {"a": 1, "b": 1, "c": 2, "d": 1}
    [resumed] = await bed.log(run_id, K.RUN_RESUMED)
    assert resumed.payload == {"reason": "recovered"}
    assert len(await bed.log(run_id, K.RUN_STARTED)) == 1
    assert (await bed.row(run_id)).attempt == 1


@pytest.mark.item(172, 490)
async def test_ten_steps_and_a_death_at_each(bed: Bed) -> None:
    """The run completes; every step that was recorded executed once, the one cut off twice."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return [await ctx.step(f"s{n}", cut, f"s{n}", n) for n in range(10)]

    async def cut(name: str, n: int) -> int:
        return int(await bed.world.hang(name, n))

    run_id = await bed.submit(await bed.serve(act))
    for _ in range(10):
        async with asyncio.timeout(20):
            await bed.world.entered.wait()
        bed.world.entered.clear()
        await bed.restart()
    assert await bed.result(run_id) == [*range(10)]
    assert bed.world.count == {f"s{n}": 2 for n in range(10)}


@pytest.mark.item(172)
async def test_a_run_that_is_taken_over_in_vain_again_and_again_is_parked(bed: Bed) -> None:
    """Poison: five take-overs without any progress in between; an operator can start it anew."""

    async def deadly() -> str:
        return str(await bed.world.hang("deadly", "survived", times=died + 1))

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("begin", bed.world.do, "begin")
        return await ctx.step("deadly", deadly)

    died = 0
    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.timeout(20):
        while True:
            entered = asyncio.ensure_future(bed.world.entered.wait())
            parked = asyncio.ensure_future(bed.seen(run_id, K.RUN_PARKED))
            await asyncio.wait({entered, parked}, return_when=asyncio.FIRST_COMPLETED)
            entered.cancel()
            if parked.done():
                break
            parked.cancel()
            bed.world.entered.clear()
            died += 1
            await bed.restart()
    assert parked.result().payload["reason"] == "poison"
    # The effect's intent rides with the first take-over's entry and counts as progress.
    assert died == 7
    died = 0
    await bed.runtime.signal(run_id, "~retry")
    assert await bed.result(run_id) == "survived"
    assert bed.world.count["begin"] == 1


# --- in doubt -----------------------------------------------------------------------------------------


async def _in_doubt(
    bed: Bed,
    *,
    then: Callable[[RunContext, Callable[[], Awaitable[object]]], Awaitable[object]] | None = None,
    **options: Any,
) -> RunId:
    """A run whose host died in the middle of paying."""

    async def pay(amount: int) -> str:
        return str(await bed.world.hang("pay", f"paid {amount}"))

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox

        async def call() -> object:
            return await ctx.step("pay", pay, 5, effect="at_most_once", **options)

        await ctx.step("before", bed.world.do, "before")
        value = await (call() if then is None else then(ctx, call))
        return [value, await ctx.step("after", bed.world.do, "after", "after")]

    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    await bed.restart()
    return run_id


@pytest.mark.item(184, 189, 485)
async def test_an_intent_without_a_result_parks_the_run(bed: Bed) -> None:
    """Listed as in doubt, with position and the command that decides; nothing executes again."""
    run_id = await _in_doubt(bed)
    parked = await bed.seen(run_id, K.RUN_PARKED)
    assert (parked.payload["reason"], parked.payload["at"]) == ("in_doubt", "1")
    assert f"callboard runs resolve {run_id} 1" in str(parked.payload["detail"])
    [row] = await bed.runtime.store.list_runs(parked=True, agent=[*bed.agents][-1])
    assert (row.run_id, row.parked) == (run_id, "in_doubt")
    await bed.restart()
    assert bed.world.count == {"before": 1, "pay": 1}
    await bed.runtime.cancel(run_id)
    assert (await bed.ended(run_id)).status is RunStatus.CANCELLED


@pytest.mark.item(189, 485)
@pytest.mark.parametrize(
    ("decision", "gives", "paid"),
    [
        ({"action": "value", "value": {"receipt": 7}}, {"receipt": 7}, 1),
        ({"action": "retry"}, "paid 5", 2),
    ],
    ids=["value", "retry"],
)
async def test_an_operator_decides(
    bed: Bed, decision: dict[str, Any], gives: object, paid: int
) -> None:
    """The value becomes the effect's, retry executes it now; recorded, and replayed after a crash."""
    run_id = await _in_doubt(bed)
    await bed.seen(run_id, K.RUN_PARKED)
    await bed.runtime.signal(run_id, "~resolve:1", decision)
    assert await bed.result(run_id) == [gives, "after"]
    assert bed.world.count == {"before": 1, "pay": paid, "after": 1}
    [resolved] = await bed.log(run_id, K.IN_DOUBT_RESOLVED)
    assert (resolved.position, resolved.payload["action"]) == ("1", decision["action"])


@pytest.mark.item(189, 485)
async def test_an_operator_lets_the_effect_fail(bed: Bed) -> None:
    """The author gets an EffectError and may go on without."""

    async def then(ctx: RunContext, call: Callable[[], Awaitable[object]]) -> object:
        try:
            return await call()
        except EffectError as exc:
            return await ctx.step("instead", bed.world.do, "instead", str(exc))

    run_id = await _in_doubt(bed, then=then)
    await bed.seen(run_id, K.RUN_PARKED)
    await bed.runtime.signal(run_id, "~resolve:1", {"action": "fail", "error": "card expired"})
    [text, _] = await bed.result(run_id)
    assert "card expired" in text
    assert bed.world.count["pay"] == 1


@pytest.mark.item(189)
@pytest.mark.parametrize("happened", [True, False])
async def test_reconcile_finds_out(bed: Bed, happened: bool) -> None:
    """Called with the effect id: what it returns is the value, EffectDidNotHappen executes now."""
    asked: list[str] = []

    async def reconcile(effect_id: str) -> str:
        asked.append(effect_id)
        if not happened:
            raise EffectDidNotHappen
        return "found"

    run_id = await _in_doubt(bed, reconcile=reconcile)
    assert await bed.result(run_id) == (["found", "after"] if happened else ["paid 5", "after"])
    assert bed.world.count["pay"] == (1 if happened else 2)
    intents = [e for e in await bed.log(run_id, K.EFFECT_INTENT) if e.position == "1"]
    assert asked == [intents[0].payload["id"]]


@pytest.mark.item(189)
async def test_code_that_swallows_the_doubt_goes_on(bed: Bed) -> None:
    """That is the author's decision; the effect is not executed, also on later replays."""

    async def then(ctx: RunContext, call: Callable[[], Awaitable[object]]) -> object:
        try:
            return await call()
        except EffectInDoubtError as exc:
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("go")
            return exc.position

    run_id = await _in_doubt(bed, then=then)
    await bed.marked(run_id)
    await bed.restart()
    await bed.runtime.signal(run_id, "go")
    assert await bed.result(run_id) == ["1", "after"]
    assert bed.world.count == {"before": 1, "pay": 1, "mark": 1, "after": 1}


@pytest.mark.item(80, 189, 190)
async def test_an_at_most_once_effect_that_failed_is_not_tried_again(bed: Bed) -> None:
    """Its recorded error ends the run, unless it is RetryAfter, which says that it did not happen."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        kind = str(inbox[0].payload)

        async def call() -> str:
            bed.world.count[kind] += 1
            if bed.world.count[kind] == 1:
                raise RetryAfter(0.01) if kind == "refused" else ConnectionError("who knows")
            return "done"

        return await ctx.step("call", call, effect="at_most_once")

    agent = await bed.serve(act)
    assert (await bed.ended(await bed.submit(agent, "broken"))).status is RunStatus.FAILED
    assert await bed.result(await bed.submit(agent, "refused")) == "done"
    assert bed.world.count == {"broken": 1, "refused": 2}


@pytest.mark.item(51, 59, 250, 484)
async def test_a_stale_host_writes_nothing(bed: Bed) -> None:
    """Another host took over while it froze: what its step gave is refused, the new one's counts."""
    gates = [asyncio.Event(), asyncio.Event()]
    turns = iter(gates)

    async def wait() -> int:
        gate = next(turns)
        bed.world.entered.set()
        await gate.wait()
        return gates.index(gate)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.step("wait", wait)

    run_id = await bed.submit(await bed.serve(act))
    old = bed.runtime
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
        bed.world.entered.clear()
        old.store.set_nudge_hook(None)
        leases = old.worker.shards
        await old.store.release_shards(leases)
        await bed.start()
        await bed.world.entered.wait()
    gates[0].set()
    while old.worker.load:
        await asyncio.sleep(0.001)
    assert (await bed.row(run_id)).status is not RunStatus.COMPLETED
    gates[1].set()
    assert await bed.result(run_id) == 1
    assert len(await bed.log(run_id, K.EFFECT_RESULT)) == 1
    await old.stop()


@pytest.mark.item(98, 108, 132, 195)
@pytest.mark.parametrize("how", ["signal", "mail"])
async def test_what_comes_while_no_host_lives_wakes_the_run(bed: Bed, how: str) -> None:
    """A client's signal or mail for a suspended run is found by the host that takes over."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        if how == "signal":
            return await ctx.sleep_until_signal("go")
        message = await ctx.receive()
        return message.payload if message is not None else None

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.marked(run_id)
    await bed.crash()
    async with bed.client() as other:
        if how == "signal":
            await other.signal(run_id, "go", "kept")
        else:
            await other.send(agent, "kept")
    await bed.start()
    assert await bed.result(run_id) == "kept"


@pytest.mark.item(33, 59, 190)
@pytest.mark.parametrize("manner", [Manner.ERROR_BEFORE, Manner.ERROR_AFTER])
async def test_mail_whose_run_could_not_be_written_is_not_lost(bed: Bed, manner: Manner) -> None:
    """The store refuses, or does not answer, the turn that was to start the run: it is tried again."""
    faults = Faults(method="commit", manner=manner)
    open_store = bed.open_store

    @asynccontextmanager
    async def open_faulty(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        async with open_store(owner) as store:
            yield FaultyStore.wrap(store, faults, lambda: None)

    bed.open_store = open_faulty
    await bed.restart()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            if message.payload == "first":
                await ctx.step("gate", gate.wait)
            await ctx.step("see", bed.world.do, str(message.payload))

    gate = asyncio.Event()
    agent = await bed.serve(act)
    first = await bed.submit(agent, "first")
    await bed.seen(first, K.MSG_RECEIVED)
    await bed.runtime.send(agent, "mail")
    if bed.backend == "memory":
        await asyncio.sleep(60)  # until no scan reads this message again
    last = await bed.submit(agent, "last")
    faults.nth = len(faults.calls) + 1  # the first turn behind the end of the first run
    gate.set()
    await bed.result(last)
    assert bed.world.order == ["first", "mail", "last"]
