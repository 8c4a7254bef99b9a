"""An operator's decision counts once, for the one doubt or parking for which it was made."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import DecisionRefusedError
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind
ROUNDS = 200 if IS_SLOW else 25


class Till:
    """An effect that hangs until the test releases it, and counts its executions."""

    def __init__(self, bed: Bed) -> None:
        self.bed, self.paid = bed, 0
        self.entered = asyncio.Event()
        self.hangs = True

    async def pay(self) -> str:
        """Execute the effect."""
        self.paid += 1
        self.entered.set()
        if self.hangs:
            await asyncio.Event().wait()
        return f"payment {self.paid}"

    async def act(self, ctx: RunContext, inbox: list[Message]) -> object:
        """An agent function that pays once."""
        del inbox
        return await ctx.step("pay", self.pay, effect="at_most_once")

    async def die(self) -> None:
        """Crash the host in the middle of the payment."""
        async with asyncio.timeout(30):
            await self.entered.wait()
        self.entered.clear()
        await self.bed.restart()

    async def parked(self, run_id: RunId, *, times: int = 1) -> None:
        """Return when the run is parked again, and evicted."""
        await self.bed.seen(run_id, K.RUN_PARKED, times=times)
        await self.bed.until(lambda: self.bed.runtime._host.worker.dispatcher.load == 0)


async def _decide(bed: Bed, run_id: RunId, *args: Any, **decision: Any) -> bool | None:
    """Return the result of `resolve`, or None if it was refused."""
    try:
        return await bed.runtime.resolve(run_id, *args, **decision)
    except DecisionRefusedError:
        return None


@pytest.mark.parametrize("second", ["retry", "value"])
async def test_a_decision_never_decides_the_next_doubt(bed: Bed, second: str) -> None:
    """Two decisions are made for one doubt.

    The repeated effect is cut off, too, and the run is parked again.
    """
    till = Till(bed)
    run_id = await bed.submit(await bed.serve(till.act))
    await till.die()
    await till.parked(run_id)
    assert await bed.runtime.resolve(run_id, "0", action="retry") is True
    arguments = {"action": second} | ({"value": "B"} if second == "value" else {})
    again = await _decide(bed, run_id, "0", **arguments)
    await till.die()
    await till.parked(run_id, times=2)

    assert till.paid == 2
    assert again is (False if second == "retry" else None)
    assert [e.payload["action"] for e in await bed.log(run_id, K.IN_DOUBT_RESOLVED)] == ["retry"]
    assert (await bed.row(run_id)).parked == "in_doubt"
    assert await bed.runtime.resolve(run_id, "0", action="value", value="C") is True
    assert await bed.result(run_id) == "C"


@pytest.mark.costly
async def test_of_conflicting_decisions_exactly_one_counts(bed: Bed) -> None:
    """Nothing is executed without a decision.

    The decisions are made at once and in any order, with crashes in the repeated effect.
    """
    rounds = ROUNDS if bed.backend != "memory" else 200
    chance = random.Random(15)
    for _ in range(rounds):
        till = Till(bed)
        run_id = await bed.submit(await bed.serve(till.act))
        await till.die()
        payments, times = 1, 1
        while True:
            await till.parked(run_id, times=times)
            assert till.paid == payments
            till.hangs = chance.random() < 0.5
            decisions = [_a_decision(chance, n) for n in range(chance.randint(1, 5))]
            calls = [_decide(bed, run_id, "0", **decision) for decision in decisions]
            answers = await asyncio.gather(*calls)
            [counted] = [
                decision for decision, ok in zip(decisions, answers, strict=True) if ok is True
            ]
            if (
                counted["action"] == "retry" and till.hangs
            ):  # else some decisions may find the run ended
                assert all(
                    decision == counted
                    for decision, ok in zip(decisions, answers, strict=True)
                    if ok is False
                )
            if counted["action"] != "retry":
                break
            payments += 1
            if not till.hangs:
                break
            await till.die()
            times += 1
        row = await bed.ended(run_id)
        if counted["action"] == "fail":
            assert row.status is RunStatus.FAILED
        else:
            assert row.result == counted.get("value", f"payment {payments}")
        assert till.paid == payments


def _a_decision(chance: random.Random, n: int) -> dict[str, Any]:
    action = chance.choice(["value", "value", "retry", "retry", "fail"])
    return {"action": action} | ({"value": f"value {n}"} if action == "value" else {})


async def test_a_decision_by_another_process_survives_a_crash(bed: Bed) -> None:
    """Another process decides while no host is alive. The next host executes the effect once."""
    till = Till(bed)
    run_id = await bed.submit(await bed.serve(till.act))
    await till.die()
    await till.parked(run_id)
    async with bed.client() as client:
        await bed.crash()
        assert await client.resolve(run_id, "0") is True
        await bed.start()
        await till.die()
        await till.parked(run_id, times=2)
        await bed.restart()
        assert (await bed.row(run_id)).parked == "in_doubt"
        assert till.paid == 2
        assert await client.resolve(run_id, "0", action="value", value="paid") is True
    assert await bed.result(run_id) == "paid"


async def test_a_decision_about_another_entry_is_refused(bed: Bed) -> None:
    """The refusal names the entry at which the run is. A decision about an older entry is refused, too."""
    till = Till(bed)
    run_id = await bed.submit(await bed.serve(till.act))
    async with asyncio.timeout(30):
        await till.entered.wait()
    for position in ("0", None):
        with pytest.raises(DecisionRefusedError, match="it is RUNNING, not parked"):
            await bed.runtime.resolve(run_id, position)
    await till.die()
    await till.parked(run_id)
    [intent] = await bed.log(run_id, K.EFFECT_INTENT)
    for position in ("1", None):
        with pytest.raises(DecisionRefusedError, match=f"in doubt at 0 .seq {intent.seq}."):
            await bed.runtime.resolve(run_id, position)
    assert await bed.runtime.resolve(run_id, "0", seq=intent.seq) is True
    await till.die()
    await till.parked(run_id, times=2)
    with pytest.raises(DecisionRefusedError, match="in doubt at 0"):
        await bed.runtime.resolve(run_id, "0", action="fail", seq=intent.seq)
    assert await bed.runtime.resolve(run_id, "0", seq=intent.seq) is False  # as it was given before
    assert till.paid == 2
    assert (await bed.row(run_id)).parked == "in_doubt"
    assert await bed.runtime.resolve(run_id, "0", action="value", value="paid") is True
    assert await bed.result(run_id) == "paid"
    assert await bed.runtime.resolve(run_id, "0") is False


async def test_a_decision_to_start_anew_is_about_one_parking(bed: Bed) -> None:
    """Given twice it starts the run once. The run is parked again and waits for another decision."""
    attempts = 0

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        nonlocal attempts
        del ctx, inbox
        attempts += 1
        if attempts < 3:
            raise ValueError("not yet")
        return attempts

    policy = RetryPolicy(max_retries=0, on_exhausted="pause")
    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    await bed.seen(run_id, K.RUN_PARKED)
    answers = await asyncio.gather(*[_decide(bed, run_id) for _ in range(3)])
    await bed.seen(run_id, K.RUN_PARKED, times=2)
    await bed.restart()
    await bed.until(lambda: bed.runtime._host.worker.dispatcher.load == 0)

    assert sorted(answers, key=str) == [False, False, True]
    assert attempts == 2
    assert len(await bed.log(run_id, K.RUN_PARKED)) == 2
    assert await bed.runtime.resolve(run_id) is True
    assert await bed.result(run_id) == 3


async def test_a_decision_for_a_back_off_does_not_start_a_later_parking(bed: Bed) -> None:
    """The decision shortened one back-off.

    A host that later takes over the parked run does not apply it again.
    """
    attempts = 0

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        nonlocal attempts
        del ctx, inbox
        attempts += 1
        raise ValueError("never")

    policy = RetryPolicy(max_retries=1, backoff_s=3600, max_backoff_s=3600, on_exhausted="pause")
    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    await bed.seen(run_id, K.RUN_ATTEMPT_FAILED)
    await bed.until(lambda: bed.runtime._host.worker.dispatcher.load == 0)
    assert await bed.runtime.resolve(run_id) is True
    await bed.seen(run_id, K.RUN_PARKED)
    for _ in range(2):
        await bed.restart()
        probe = await bed.submit(await bed.serve(_at_once))
        await bed.result(probe)

    assert attempts == 2


async def _at_once(ctx: RunContext, inbox: list[Message]) -> None:
    del ctx, inbox
