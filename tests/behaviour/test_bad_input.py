"""Errors of agents' authors: each has one outcome, and an error text with the remedy."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.message import MAX_PAYLOAD_BYTES
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime import Runtime
from actors.errors import ContractError, EffectOutsideScopeError, RunFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def _failure(
    bed: Bed, act: Callable[[RunContext, list[Message]], Awaitable[Any]]
) -> tuple[str, str]:
    """Return status and error text of this agent's failed run."""
    run_id = await bed.submit(await bed.serve(act))
    row = await bed.ended(run_id)
    assert row.status is RunStatus.FAILED
    assert row.error is not None
    return str(row.error["status"]), str(row.error["message"])


@pytest.mark.item(68)
async def test_an_effect_in_a_foreign_task_is_refused(bed: Bed) -> None:
    """The error names the ctx method to use; the step is not executed."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("lost", bed.world.do, "lost"))

    async def caught(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        task = asyncio.ensure_future(ctx.now())
        try:
            await task
        except EffectOutsideScopeError as exc:
            return str(exc)
        return "no error"

    assert "Start concurrent work with ctx.gather" in await bed.play(caught)
    with pytest.raises(RunFailedError):
        await bed.result(await bed.submit(await bed.serve(act), max_retries=0))
    assert bed.world.count["lost"] == 0


@pytest.mark.item(68)
async def test_asyncio_gather_around_ctx_calls_is_refused(bed: Bed) -> None:
    """The tasks of asyncio.gather are no branches of the run."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await asyncio.gather(ctx.step("a", bed.world.do, "a"), ctx.step("b", bed.world.do, "b"))

    status, text = await _failure(bed, act)
    assert status == "terminal"
    assert "not asyncio.create_task, asyncio.gather or asyncio.wait_for" in text
    assert bed.world.count == {}


@pytest.mark.item(68)
async def test_asyncio_timeout_around_ctx_calls_is_refused(bed: Bed) -> None:
    """A replay could not repeat it; the error names the ctx methods to use."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        async def hang() -> Any:
            await asyncio.sleep(100)

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "step": lambda: ctx.step("hang", hang),
            "signal": lambda: ctx.sleep_until_signal("never"),
            "sleep": lambda: ctx.sleep(100),
            "receive": ctx.receive,
            "gather": lambda: ctx.gather(ctx.step("hang", hang)),
        }
        async with asyncio.timeout(0.05):
            await calls[str(inbox[0].payload)]()

    if bed.drops:
        await bed.restart(suspend_after=5)
    agent = await bed.serve(act)
    for verb in ("step", "signal", "sleep", "receive", "gather"):
        with pytest.raises(RunFailedError, match="was cancelled from outside") as caught:
            await bed.result(await bed.submit(agent, verb))
        assert "ctx.step(..., timeout=...)" in caught.value.message


@contextlib.asynccontextmanager
async def _limited() -> AsyncIterator[None]:
    async with asyncio.timeout(3600):
        yield


@pytest.mark.item(68)
async def test_a_time_limit_is_refused_when_the_run_leaves_memory(bed: Bed) -> None:
    """It would be lost there. One that is over, or has no time, changes nothing."""

    async def stacked(wait: Awaitable[object]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(asyncio.timeout(3600))
            await wait

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        async with asyncio.timeout(3600) as over, asyncio.timeout(None):
            await ctx.now()
        limited: dict[str, Callable[[], Awaitable[object]]] = {
            "sleep": lambda: ctx.sleep(7200),
            "signal": lambda: ctx.sleep_until_signal("never"),
            "receive": ctx.receive,
            "approval": lambda: ctx.approval("never"),
            "ask": lambda: ctx.ask(bed.name(), "never", timeout=7200),
            "gather": lambda: ctx.gather(ctx.sleep(7200), ctx.sleep_until_signal("never")),
            "select": lambda: ctx.select(ctx.sleep(7200), ctx.sleep_until_signal("never")),
        }
        verb = str(inbox[0].payload)
        if verb == "none":
            async with asyncio.timeout(None):
                await ctx.sleep_until_signal("go")
            return over.expired()
        if verb == "helper":
            async with _limited():
                await limited["signal"]()
        elif verb == "stack":
            await stacked(limited["signal"]())
        elif verb == "branch":
            await ctx.gather(stacked(limited["signal"]()))
        else:
            async with asyncio.timeout(3600):
                await limited[verb]()
        return None

    if not bed.drops:
        await bed.restart(suspend_after=0.05)
    agent = await bed.serve(act)
    verbs = ("sleep", "signal", "receive", "approval", "ask", "gather", "select")
    for verb in (*verbs, "helper", "stack", "branch"):
        with pytest.raises(RunFailedError, match="was cancelled from outside"):
            await bed.result(await bed.submit(agent, verb))
    run_id = await bed.submit(agent, "none")
    await bed.seen(run_id, EntryKind.RUN_SUSPENDED)
    await bed.runtime.signal(run_id, "go")
    assert await bed.result(run_id) is False


@pytest.mark.item(68)
async def test_asyncio_wait_for_around_ctx_calls_is_refused(bed: Bed) -> None:
    """Python 3.11 moves the call into another task; newer versions cancel it at the timeout."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await asyncio.wait_for(ctx.step("a", asyncio.sleep, 100), timeout=0.05)

    status, text = await _failure(bed, act)
    assert status == "terminal"
    assert "ctx.select" in text


@pytest.mark.item(105)
@pytest.mark.parametrize("did", ["returned", "raised", "waited"])
async def test_swallowing_the_suspension_fails_the_run(bed: Bed, did: str) -> None:
    """The error names the agent and its mistake; no ctx call in between executes."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        try:
            await ctx.sleep_until_signal("never")
        except BaseException:  # noqa: BLE001 - the mistake under test
            if did == "raised":
                raise ValueError("something else") from None
            if did == "waited":
                await ctx.step("after", bed.world.do, "after")
        return 1

    if not bed.drops:
        await bed.restart(suspend_after=0.05)
    run_id = await bed.submit(await bed.serve(act), max_retries=0)
    if did == "waited":
        await bed.seen(run_id, EntryKind.RUN_SUSPENDED)
        assert bed.world.count["after"] == 0
        return
    with pytest.raises(RunFailedError, match="swallowed the suspension"):
        await bed.result(run_id)


@pytest.mark.item(105)
async def test_cleanup_executes_no_effect_when_the_run_suspends(bed: Bed) -> None:
    """`finally` blocks run at each suspension; their ctx calls raise the signal again."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        try:
            return await ctx.sleep_until_signal("go")
        finally:
            await ctx.step("cleanup", bed.world.do, "cleanup")

    if not bed.drops:
        await bed.restart(suspend_after=0.05)
    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, EntryKind.RUN_SUSPENDED)
    assert bed.world.count["cleanup"] == 0
    await bed.runtime.signal(run_id, "go", 1)
    assert await bed.result(run_id) == 1
    assert bed.world.count["cleanup"] == 1


@pytest.mark.item(63)
async def test_an_agent_that_cancels_itself_is_a_crash(bed: Bed) -> None:
    """A CancelledError without a cancel request is an error like any other, and is retried."""

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        del inbox
        if ctx.meta.attempt == 1:
            raise asyncio.CancelledError
        return ctx.meta.attempt

    assert await bed.play(act) == 2


@pytest.mark.item(63)
async def test_an_agent_that_raises_a_base_exception_fails(bed: Bed) -> None:
    """The host survives each exception that an agent raises."""

    class Rude(BaseException):
        """Neither an Exception nor a signal of the runtime."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        raise Rude("goodbye")

    async def polite(ctx: RunContext, inbox: list[Message]) -> str:
        del ctx, inbox
        return "alive"

    run_id = await bed.submit(await bed.serve(act), max_retries=0)
    with pytest.raises(RunFailedError, match="goodbye"):
        await bed.result(run_id)
    assert await bed.play(polite) == "alive"


@pytest.mark.item(63)
async def test_errors_with_odd_texts_are_recorded(bed: Bed) -> None:
    """The text is recorded as far as it can be encoded; the run fails."""
    texts = ["\x00", "\ud800", "x" * 100_000]

    def fail(n: int) -> None:
        raise ValueError(texts[n])

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("fail", fail, inbox[0].payload)

    agent = await bed.serve(act)
    for n in range(len(texts)):
        row = await bed.ended(await bed.submit(agent, n, max_retries=0))
        assert row.status is RunStatus.FAILED
        assert row.error is not None
        assert row.error["status"] == "agent_crashed"
        assert 0 < len(str(row.error["message"])) <= 10_000


@pytest.mark.item(74)
@pytest.mark.parametrize("size", [100_000, 2_000_000])
async def test_large_values_pass(bed: Bed, size: int) -> None:
    """Through a step, state and output of any size; through a message up to its size limit."""
    payload = "y" * min(size, MAX_PAYLOAD_BYTES - 2)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        big = await ctx.step("big", lambda: "x" * size)
        await ctx.state.set("big", big)
        return [len(big), len(str(await ctx.state.get("big"))), len(str(inbox[0].payload))]

    run_id = await bed.submit(await bed.serve(act), payload)
    assert await bed.result(run_id) == [size, size, len(payload)]


@pytest.mark.item(74)
async def test_a_value_nested_too_deep_is_an_error(bed: Bed) -> None:
    """64 levels are accepted, more are an error of the run."""

    def nested(depth: int) -> object:
        value: object = 1
        for _ in range(depth):
            value = [value]
        return value

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.step("nest", lambda: nested(int(str(inbox[0].payload))))

    agent = await bed.serve(act)
    assert await bed.result(await bed.submit(agent, 60)) == nested(60)
    with pytest.raises(RunFailedError, match="nested deeper than 64"):
        await bed.result(await bed.submit(agent, 100_000))


@pytest.mark.item(103)
async def test_code_that_uses_random_values_is_parked(bed: Bed) -> None:
    """A random value in a step's arguments differs on replay: the run is parked."""
    drawn = iter(range(100))

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("chance", bed.world.do, "chance", next(drawn))
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    await bed.restart()
    await bed.runtime.signal(run_id, "go")
    parked = await bed.seen(run_id, EntryKind.RUN_PARKED)
    assert parked.payload["reason"] == "non_determinism"
    assert bed.world.count["chance"] == 1


NO_NUMBERS: Final = (math.nan, math.inf, 1e308, 10**30, "text")
"""Values of arguments that have a bound: no number, or beyond every bound."""


@pytest.mark.parametrize(
    "settings", [{"suspend_after": None}, {"capacity": 0}, {"capacity": -1}, {"heartbeat_s": 0}]
)
def test_a_runtime_has_settings_within_their_ranges(settings: dict[str, Any]) -> None:
    """A number out of its range is refused when the runtime is made, and the error names the argument."""
    [(name, value)] = settings.items()
    for refused_value in (value, *NO_NUMBERS):
        arguments: Any = {name: refused_value}
        with pytest.raises(ContractError, match=rf"^{name} is .*(give|from 1 to|no whole number)"):
            Runtime(**arguments)


async def test_a_number_without_bounds_is_refused_at_the_call(bed: Bed) -> None:
    """The error names the argument on every assembly; it is no error of a server or of asyncio."""

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        del ctx, inbox
        return 1

    agent_id = await bed.serve(act)
    run_id = await bed.submit(agent_id)
    await bed.result(run_id)
    runtime = bed.runtime
    calls: dict[str, Callable[[Any], Any]] = {
        "priority": lambda n: runtime.submit(agent_id, 1, priority=n, tenant=agent_id.tenant),
        "max_retries": lambda n: runtime.submit(agent_id, 1, max_retries=n, tenant=agent_id.tenant),
        "seq": lambda n: runtime.resolve(run_id, "0", seq=n),
        "at_seq": lambda n: runtime.fork_run(run_id, at_seq=n),
        "copy": lambda n: runtime.fork_run(run_id, at_seq=0, copy=n),
        "from_seq": lambda n: anext(aiter(runtime.entries(run_id, from_seq=n))),
        "from_seq of tail": lambda n: anext(aiter(runtime.tail(run_id, from_seq=n))),
        "limit": lambda n: runtime.approvals.open(limit=n),
        "limit of a page": lambda n: runtime.history.get_messages(
            agent_id, session_id="s", limit=n
        ),
        "offset of a page": lambda n: runtime.history.get_messages(
            agent_id, session_id="s", offset=n
        ),
        "wait_s": lambda n: runtime.erase(tenant="nobody", wait_s=n),
        "drain_s": lambda n: runtime.stop(drain_s=n),
    }
    for name, call in calls.items():
        for value in NO_NUMBERS:
            with pytest.raises(ContractError, match=rf"^{name.partition(' of tail')[0]}.* is "):
                await call(value)
