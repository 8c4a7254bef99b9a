"""What a wake costs by the length of its log, and what the host says of a long one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._runtime import Runtime
from actors._runtime.journal.run_log import LONG_LOG
from tests.harness.wide import suspended

if TYPE_CHECKING:
    from actors._runtime import RunContext

AGENT = AgentId("long", "one")


class Longwinded:
    """Makes so many steps, in this generation or the one before, and then waits for signals."""

    id = AGENT

    async def run(self, ctx: RunContext, inbox: Any) -> str:
        """See the class."""
        order = inbox[0].payload
        for _ in range(order["steps"]):
            await ctx.step("step", lambda: 1)
        if order["continues"]:
            await ctx.continue_as_new(order | {"steps": 0, "continues": False})
        for _ in range(order["waits"]):
            await ctx.sleep_until_signal("go")
        return "done"


async def _calls_of_wake(steps: int) -> int:
    """Return how many calls of functions it takes from the signal to the end of the run."""
    calls = 0

    def count_call(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    async with Runtime(suspend_after=0.0) as runtime:
        await runtime.register(Longwinded())
        run = await runtime.submit(AGENT, {"steps": steps, "continues": False, "waits": 1})
        await suspended(runtime, run)
        sys.setprofile(count_call)
        try:
            await runtime.signal(run, "go")
            await runtime.result(run)
        finally:
            sys.setprofile(None)
    return calls


async def test_each_entry_costs_a_wake_the_same() -> None:
    """A step with its two entries takes 44 calls of functions, for folding and meeting them, however many."""
    calls = [await _calls_of_wake(steps) for steps in (50, 150, 250)]
    first, second = calls[1] - calls[0], calls[2] - calls[1]

    assert first <= 100 * 44
    assert second <= first * 1.05


@pytest.mark.parametrize("continues", [False, True], ids=["goes on", "continues as new"])
async def test_a_long_log_is_named_once(continues: bool, caplog: pytest.LogCaptureFixture) -> None:
    """At a thousand entries the host says what would end that; another wake says nothing more."""
    async with Runtime(suspend_after=0.0) as runtime:
        await runtime.register(Longwinded())
        order = {"steps": LONG_LOG // 2, "continues": continues, "waits": 2}
        run = await runtime.submit(AGENT, order)
        await suspended(runtime, run)
        await runtime.signal(run, "go")
        await suspended(runtime, run, times=2)
        await runtime.signal(run, "go")
        await runtime.result(run)

    warnings = [record for record in caplog.records if "ctx.continue_as_new" in record.message]
    assert [vars(record)["run"] for record in warnings] == ([] if continues else [run])
