"""Steps: executed once, recorded before they return, the same on replay."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.effects import Effect
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._runtime import idempotency_key
from actors.errors import ContractError, DeadlineExceededError, RunFailedError

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind


@pytest.mark.item(70, 186, 187, 188)
async def test_a_step_executes_once_and_is_replayed(bed: Bed) -> None:
    """Intent, then result; after a crash its value comes from the log."""

    async def body(ctx: RunContext) -> object:
        return await ctx.step("add", bed.world.do, "add", 42)

    assert {*await bed.live_and_replayed(body)} == {42}
    assert bed.world.count["add"] == 1


@pytest.mark.item(72, 188, 485)
async def test_a_result_is_durable_before_the_call_returns(bed: Bed) -> None:
    """A reader of the log finds intent and result in it once the step has returned."""
    kinds: list[list[str]] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("do", bed.world.do, "do")
        kinds.append(await bed.kinds(ctx.run_id))

    await bed.play(act)
    assert kinds[0] == ["run.started", "msg.received", "effect.intent", "effect.result"]


@pytest.mark.item(70)
async def test_a_step_takes_plain_and_coroutine_functions(bed: Bed) -> None:
    """Positional arguments are passed on; lambdas and methods are fine."""

    def plain(a: int, b: int) -> int:
        return a + b

    async def coroutine(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a * b

    async def act(ctx: RunContext, inbox: list[Message]) -> list[object]:
        del inbox
        return [
            await ctx.step("plain", plain, 2, 3),
            await ctx.step("coroutine", coroutine, 2, 3),
            await ctx.step("lambda", lambda: "x"),
        ]

    assert await bed.play(act) == [5, 6, "x"]


@pytest.mark.item(71, 73, 74)
async def test_a_caught_error_is_the_same_live_and_on_replay(bed: Bed) -> None:
    """Same class, same text, same arguments, and the function is not called again."""

    async def body(ctx: RunContext) -> object:
        caught = []
        for name, error in (("a", ValueError), ("b", KeyError), ("c", ConnectionResetError)):
            try:
                await ctx.step(name, functools.partial(bed.world.fail, name, error))
            except Exception as exc:  # noqa: BLE001 - whatever it is, it is compared
                caught.append((type(exc), str(exc), exc.args))
        return caught

    values = await bed.live_and_replayed(body)
    assert all(value == values[0] for value in values)
    assert [cls for cls, _, _ in values[0]] == [ValueError, KeyError, ConnectionResetError]
    assert bed.world.count == {"a": 1, "b": 1, "c": 1, "mark": 1}


class OddError(Exception):
    """An error that cannot be made from its arguments alone."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@pytest.mark.item(71, 74)
async def test_an_error_that_cannot_be_rebuilt_is_named(bed: Bed) -> None:
    """Live and on replay the author's code gets a RecordedError with its type and text."""

    def odd() -> None:
        raise OddError(code=7)

    async def body(ctx: RunContext) -> object:
        try:
            await ctx.step("odd", odd)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is compared
            return type(exc).__name__, str(exc)
        return "no error"

    values = await bed.live_and_replayed(body)
    assert {*values} == {("RecordedError", f"{__name__}:OddError: code 7")}


@pytest.mark.item(71)
async def test_retry_inside_a_step_records_the_last_outcome_only(bed: Bed) -> None:
    """Three calls, one intent, one result."""

    async def flaky() -> str:
        bed.world.count["flaky"] += 1
        if bed.world.count["flaky"] < 3:
            raise ConnectionError("again")
        return "fine"

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        policy = RetryPolicy(max_retries=5, backoff_s=0.01)
        return await ctx.step("flaky", flaky, retry=policy)

    run_id = await bed.submit(await bed.serve(act))
    assert await bed.result(run_id) == "fine"
    assert bed.world.count["flaky"] == 3
    assert len(await bed.log(run_id, K.EFFECT_INTENT, K.EFFECT_RESULT)) == 2


@pytest.mark.item(71)
async def test_a_step_beyond_its_timeout_fails(bed: Bed) -> None:
    """The author's code gets DeadlineExceededError; a TimeoutError of the function itself stays one."""

    async def body(ctx: RunContext) -> object:
        caught = []
        try:
            await ctx.step("slow", bed.world.hang, "slow", timeout=0.05)
        except DeadlineExceededError as exc:
            caught.append(str(exc))
        try:
            await ctx.step("own", lambda: bed.world.fail("own", TimeoutError), timeout=5)
        except TimeoutError as exc:
            caught.append(str(exc))
        return caught

    for value in await bed.live_and_replayed(body):
        assert value == ["step 'slow' did not finish within 0.05 s", "own is broken"]


@pytest.mark.item(69, 189, 192)
async def test_the_idempotency_key_is_the_same_after_a_crash(bed: Bed) -> None:
    """An interrupted step executes again under its key, which is the effect's id."""
    keys: list[str] = []

    async def call(order: int) -> str:
        keys.append(idempotency_key())
        return str(await bed.world.hang("call", order))

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        return await ctx.step("call", call, 7)

    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    await bed.restart()
    assert await bed.result(run_id) == "7"
    assert bed.world.count == {"before": 1, "call": 2}
    assert keys == [Effect.make_id(run_id, "1", "step", ["call", [7]])] * 2
    [intent, *_] = [e for e in await bed.log(run_id, K.EFFECT_INTENT) if e.position == "1"]
    assert intent.payload["id"] == keys[0]
    with pytest.raises(ContractError, match="only known inside"):
        idempotency_key()


@pytest.mark.item(68, 69, 193)
async def test_the_same_program_has_the_same_positions(bed: Bed) -> None:
    """Two runs of it differ only in their ids."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("a", bed.world.do, "a")
        await ctx.gather(*(ctx.step("b", bed.world.do, "b", i) for i in range(3)))
        await ctx.now()
        await ctx.step("c", bed.world.do, "c")

    agent = await bed.serve(act)
    runs = [await bed.submit(agent) for _ in range(2)]
    logs = []
    for run_id in runs:
        await bed.result(run_id)
        logs.append(sorted((e.kind, e.position) for e in await bed.log(run_id)))
    assert logs[0] == logs[1]
    positions = [position for kind, position in logs[0] if kind == K.EFFECT_RESULT]
    assert positions == ["0", "1.0.0", "1.1.0", "1.2.0", "2", "3"]


@pytest.mark.item(74)
async def test_arguments_have_to_be_json_data(bed: Bed) -> None:
    """The error names the problem, and the step is not executed."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("odd", lambda _: bed.world.do("odd"), object())

    with pytest.raises(RunFailedError, match="cannot be recorded"):
        await bed.play(act)
    assert bed.world.count["odd"] == 0


@pytest.mark.item(189)
async def test_an_at_most_once_step_with_retry_is_refused(bed: Bed) -> None:
    """The two options contradict each other; the run fails with an error that names both."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("pay", bed.world.do, "pay", effect="at_most_once", retry=RetryPolicy())

    with pytest.raises(RunFailedError, match="execute an at-most-once effect twice"):
        await bed.play(act)
    assert bed.world.count["pay"] == 0
