"""A flow that host processes serve. Every call of its handler leaves a line in a ledger."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    Flows,
    StepPlan,
    WorkflowSpec,
)
from compose.demo.ledger import append_line

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from actors.workflow import RunState

APP: Final = "hosted"
STEPS: Final = 6
ONCE: Final = 4
"""The step that may happen once at most."""


def work(run: RunState, _ctx: Any) -> StepPlan:
    """A step with an effect, six times; then an end."""
    n = run.vars["n"] = run.vars.get("n", -1) + 1
    if n == STEPS:
        return StepPlan("work", complete_output=run.vars["did"])
    mode = EffectMode.AT_MOST_ONCE if n == ONCE else EffectMode.IDEMPOTENT
    effect = Effect(EffectType.TOOL_CALLS, {"n": n}, f"did.{n}", mode)
    return StepPlan("work", effect, next_node="work")


async def note(run: RunState, effect: Effect) -> EffectOutcome:
    """Leave ``number pid`` in the ledger that the vars name, and take its time at the slow step."""
    n = effect.payload["n"]
    append_line(run.vars["ledger"], f"{n} {os.getpid()}")
    await asyncio.sleep(3 if n == run.vars.get("slow") else 0)
    return EffectOutcome.completed(n * 10)


async def serve(runtime: Runtime) -> None:
    """Serve it."""
    spec = WorkflowSpec("six", "work", {"work": work})
    flows = Flows(APP, [spec], effect_handlers={EffectType.TOOL_CALLS: note})
    await flows.register(runtime)
