"""Errors whose attributes raise, and invalid times: each run comes to an end."""

from __future__ import annotations

import asyncio
import math
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from typing_extensions import override

from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import ActorsError, ContractError, RetryAfter, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


class MuteError(Exception):
    """An error whose text is empty."""

    @override
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


class ExitingError(Exception):
    """An error whose `__str__` raises SystemExit."""

    @override
    def __str__(self) -> NoReturn:  # noqa: PLE0307 - the mistake under test
        sys.exit(3)


class NumberError(Exception):
    """An error whose `__str__` returns no text."""

    @override
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - the mistake under test


class MaskedError(Exception):
    """An error that hides its class."""

    @property  # type: ignore[explicit-override]
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise RuntimeError("no class")


class ArmlessError(Exception):
    """An error without `args`."""

    @property
    @override
    def args(self) -> Any:  # type: ignore[override]
        """Raise."""
        raise RuntimeError("no args")


class SealedError(Exception):
    """An error whose attributes can be neither read nor set."""

    @override
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError(f"no {name}")


class HastyError(RetryAfter):
    """An error whose `__init__` does not set its attributes."""

    def __init__(self) -> None:
        pass


def _error_named(name: str) -> Exception:
    error: Exception = type("Odd", (Exception,), {"__qualname__": name})()
    return error


def _nested(depth: int) -> Exception:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return ValueError(value)


def _huge() -> Exception:
    return ValueError(*["x" * 1_000_000] * 20)


ODD: dict[str, Callable[[], BaseException]] = {
    "mute": MuteError,
    "exits": ExitingError,
    "number": NumberError,
    "masked": MaskedError,
    "armless": ArmlessError,
    "sealed": SealedError,
    "hasty": HastyError,
    "surrogate in its name": lambda: _error_named("Odd\ud800"),
    "NUL in its name": lambda: _error_named("Odd\x00"),
    "nested": lambda: _nested(3_000),
    "nested deeper": lambda: _nested(200_000),
    "huge": _huge,
    "digits": lambda: ValueError(10**6_000),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "later for ever": lambda: RetryAfter(math.inf),
    "later by ages": lambda: RetryAfter(1e12),
    "earlier": lambda: RetryAfter(-1e12),
    "never": lambda: RetryAfter(math.nan),
    "a word later": lambda: RetryAfter("soon"),  # type: ignore[arg-type]
}


STEERING = {"hasty", "interrupt", *(name for name in ODD if "later" in name), "earlier", "never"}
"""Signals of the runtime, wherever they are raised."""


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("position", ["run", "step", "once"])
async def test_an_error_that_cannot_be_inspected_ends_its_attempt(
    bed: Bed, name: str, position: str
) -> None:
    """Whatever its text, class, arguments or delay: started once for each attempt, and recorded."""
    begun = 0

    def fail() -> NoReturn:
        error = ODD[name]()
        raise error

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        nonlocal begun
        del inbox
        begun += 1
        if position == "run":
            fail()
        await ctx.step("fail", fail, effect="idempotent" if position == "step" else "at_most_once")

    run_id = await bed.submit(await bed.serve(act), max_retries=0)
    row = await bed.ended(run_id)

    assert row.status is RunStatus.FAILED
    assert row.error is not None
    assert row.error["message"] is not None
    assert begun == 1


@pytest.mark.parametrize("name", [name for name in ODD if name not in STEERING])
async def test_a_tool_error_that_cannot_be_inspected_is_a_result(bed: Bed, name: str) -> None:
    """The model gets it as a tool result, and the run continues."""

    async def run() -> None:
        error = ODD[name]()
        raise error

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.tool("handy")).status

    run_id = await bed.submit(await bed.serve(act, tools=[Tool("handy", "Fails.", run)]))

    assert await bed.result(run_id) == "error"


NEGATIVE = ("sleep", "receive", "step")
"""A negative time counts as none."""


@pytest.mark.parametrize("delay_s", [math.inf, 1e12])
async def test_a_retry_after_for_ever_waits_ten_years_at_most(bed: Bed, delay_s: float) -> None:
    """The run backs off; an operator can retry it before."""
    begun = 0

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        nonlocal begun
        del ctx, inbox
        begun += 1
        if begun == 1:
            raise RetryAfter(delay_s)
        return begun

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, "run.attempt_failed")
    row = await bed.row(run_id)
    assert (row.status, row.attempt, begun) == (RunStatus.PENDING, 1, 1)
    assert row.wake_at is not None
    await bed.runtime.resolve(run_id)
    assert await bed.result(run_id) == 2


async def test_the_thousandth_retry_comes_as_late_as_the_tenth(bed: Bed) -> None:
    """The doubled wait has an upper limit."""
    policy = RetryPolicy(max_retries=2_000, backoff_s=0.001, factor=1e300, max_backoff_s=0.001)

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        del inbox
        if ctx.meta.attempt <= 5:
            raise ValueError("not yet")
        return ctx.meta.attempt

    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)

    assert await bed.result(run_id) == 6


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e12, -math.inf, "soon", 10**400])
@pytest.mark.parametrize("verb", ["sleep", "receive", "ask", "approval", "step"])
async def test_an_invalid_time_is_refused_at_the_call(bed: Bed, verb: str, seconds: Any) -> None:
    """The error names the method and the number; the run is started once."""
    if (verb, seconds) in {("step", math.inf), *((negative, -math.inf) for negative in NEGATIVE)}:
        pytest.skip("this one has a meaning")
    begun = 0

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        nonlocal begun
        del inbox
        begun += 1
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "sleep": lambda: ctx.sleep(seconds),
            "receive": lambda: ctx.receive(timeout=seconds),
            "ask": lambda: ctx.ask(bed.name(), 1, timeout=seconds),
            "approval": lambda: ctx.approval("pay", timeout=seconds),
            "step": lambda: ctx.step("wait", asyncio.sleep, 0, timeout=seconds),
        }
        try:
            await calls[verb]()
        except ContractError as exc:
            return str(exc)
        return "no error"

    message = await bed.play(act)

    assert verb in message
    assert "second" in message
    assert begun == 1


async def test_a_sleep_until_the_last_instant_of_the_calendar_suspends(bed: Bed) -> None:
    """A far instant is valid: the run is suspended until it is cancelled."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.sleep_until(datetime.max.replace(tzinfo=UTC))

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, "timer.set")
    await bed.restart()
    await bed.runtime.cancel(run_id)
    with pytest.raises(RunFailedError):
        await bed.result(run_id)


@pytest.mark.parametrize("deadline_s", [math.nan, math.inf, "soon", -1])
async def test_an_agent_without_a_sensible_deadline_is_refused_or_served(
    bed: Bed, deadline_s: Any
) -> None:
    """The error is raised at the registration, before any run."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox

    with pytest.raises(ActorsError, match="deadline_s"):
        await bed.serve(act, deadline_s=deadline_s)
    bed.agents.clear()
