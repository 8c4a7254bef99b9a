"""At-most-once effects that started and whose outcome is unknown: never guessed, never repeated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.worker import dispatcher as dispatch
from actors.errors import EffectDidNotHappen, EffectError, EffectInDoubtError, RetryAfter
from tests.harness.faulty_store import Faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind


async def _in_doubt(
    bed: Bed,
    *,
    then: Callable[[RunContext, Callable[[], Awaitable[object]]], Awaitable[object]] | None = None,
    **options: Any,
) -> RunId:
    """Return a run whose host crashed in the middle of a payment."""

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
    """It is listed as in doubt, with position and the command that decides; nothing executes again."""
    run_id = await _in_doubt(bed)
    parked = await bed.seen(run_id, K.RUN_PARKED)
    assert (parked.payload["reason"], parked.payload["at"]) == ("in_doubt", "1")
    assert f"callboard runs resolve {run_id} 1" in str(parked.payload["detail"])
    [row] = await bed.runtime.store.lists.runs(parked=True, agent=[*bed.agents][-1])
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
    """A value becomes the effect's result, retry executes it now; recorded, and replayed after a crash."""
    run_id = await _in_doubt(bed)
    await bed.seen(run_id, K.RUN_PARKED)
    await bed.runtime.resolve(run_id, "1", **decision)
    assert await bed.result(run_id) == [gives, "after"]
    assert bed.world.count == {"before": 1, "pay": paid, "after": 1}
    [resolved] = await bed.log(run_id, K.IN_DOUBT_RESOLVED)
    assert (resolved.position, resolved.payload["action"]) == ("1", decision["action"])


async def test_a_decision_that_could_not_be_read_is_read_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails when the decision is read."""
    monkeypatch.setattr(dispatch, "TRY_AGAIN_S", 0.05)
    faults = Faults(method="signals")
    bed.go_wrong(faults)
    run_id = await _in_doubt(bed)
    await bed.seen(run_id, K.RUN_PARKED)
    await bed.until(lambda: bed.runtime._host.worker.dispatcher.load == 0)
    faults.nth = len(faults.calls)
    await bed.runtime.resolve(run_id, "1", action="value", value="paid")
    assert await bed.result(run_id) == ["paid", "after"]
    assert faults.struck


@pytest.mark.item(189, 485)
async def test_an_operator_lets_the_effect_fail(bed: Bed) -> None:
    """The author's code gets an EffectError and may catch it."""

    async def then(ctx: RunContext, call: Callable[[], Awaitable[object]]) -> object:
        try:
            return await call()
        except EffectError as exc:
            return await ctx.step("instead", bed.world.do, "instead", str(exc))

    run_id = await _in_doubt(bed, then=then)
    await bed.seen(run_id, K.RUN_PARKED)
    await bed.runtime.resolve(run_id, "1", action="fail", error="card expired")
    [text, _] = await bed.result(run_id)
    assert "card expired" in text
    assert bed.world.count["pay"] == 1


@pytest.mark.item(189)
@pytest.mark.parametrize("happened", [True, False])
async def test_reconcile_decides_an_effect_in_doubt(bed: Bed, happened: bool) -> None:
    """It is called with the effect id.

    Its return value is the result; EffectDidNotHappen executes the effect now.
    """
    effect_ids: list[str] = []

    async def reconcile(effect_id: str) -> str:
        effect_ids.append(effect_id)
        if not happened:
            raise EffectDidNotHappen
        return "found"

    run_id = await _in_doubt(bed, reconcile=reconcile)
    assert await bed.result(run_id) == (["found", "after"] if happened else ["paid 5", "after"])
    assert bed.world.count["pay"] == (1 if happened else 2)
    intents = [e for e in await bed.log(run_id, K.EFFECT_INTENT) if e.position == "1"]
    assert effect_ids == [intents[0].payload["id"]]


@pytest.mark.item(189)
async def test_code_that_catches_the_doubt_continues(bed: Bed) -> None:
    """The author decides to continue. The effect is not executed, also on later replays."""

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
    """Its recorded error ends the run, unless it is RetryAfter, which states that it did not happen."""

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


@pytest.mark.item(485)
async def test_an_orderly_shutdown_waits_for_the_effect(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a drain, too: the next host finds the result, and no operator has to decide."""
    monkeypatch.setattr("actors._runtime.worker.worker.EFFECT_LIMIT_S", 20.0)
    entered = asyncio.Event()

    async def pay() -> str:
        bed.world.count["pay"] += 1
        entered.set()
        await asyncio.sleep(0.3)
        return "paid"

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        paid = await ctx.step("pay", pay, effect="at_most_once")
        return [paid, await ctx.step("after", bed.world.do, "after", "after")]

    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.timeout(20):
        await entered.wait()
    await bed.stop()
    await bed.start()

    assert await bed.result(run_id) == ["paid", "after"]
    assert bed.world.count["pay"] == 1


async def test_other_branches_continue_after_a_decision(bed: Bed) -> None:
    """Parking interrupted them in the middle of an effect; it is executed again."""
    calls: list[str] = []
    is_free = False

    async def work(name: str) -> str:
        calls.append(name)
        if not is_free:
            await asyncio.Event().wait()
        return name

    async def act(ctx: RunContext, inbox: list[Message]) -> list[str]:
        del inbox
        doubtful = ctx.step("doubtful", work, "doubtful", effect="at_most_once")
        return await ctx.gather(doubtful, ctx.step("other", work, "other"))

    run_id = await bed.submit(await bed.serve(act))
    await bed.until(lambda: len(calls) == 2)
    await bed.restart()
    parked = await bed.seen(run_id, K.RUN_PARKED)
    is_free = True
    await bed.runtime.resolve(run_id, str(parked.payload["at"]), action="retry")
    assert await bed.result(run_id) == ["doubtful", "other"]


async def test_two_effects_in_doubt_at_once_are_decided_one_by_one(bed: Bed) -> None:
    """Parking for the first effect interrupted the other one: its outcome is unknown, too."""
    calls: list[str] = []

    async def pay(name: str) -> str:
        calls.append(name)
        await asyncio.Event().wait()
        return name

    async def act(ctx: RunContext, inbox: list[Message]) -> list[str]:
        del inbox
        paying = [ctx.step(name, pay, name, effect="at_most_once") for name in ("a", "b")]
        return await ctx.gather(*paying)

    run_id = await bed.submit(await bed.serve(act))
    await bed.until(lambda: len(calls) == 2)
    await bed.restart()
    for number in (1, 2):
        parked = await bed.seen(run_id, K.RUN_PARKED, times=number)
        at = str(parked.payload["at"])
        await bed.runtime.resolve(run_id, at, action="value", value=f"paid at {at}")
    assert await bed.result(run_id) == ["paid at 0.0.0", "paid at 0.1.0"]
    assert sorted(calls) == ["a", "b"]
