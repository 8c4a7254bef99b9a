"""A flow that host processes serve. Every call of its handler appends a line to a ledger."""

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
from compose.demo.desk import append_line
from tests.system import blockers

if TYPE_CHECKING:
    from actors._runtime import Runtime
    from actors.workflow import RunState

APP: Final = "hosted"
STEPS: Final = 6
ONCE: Final = 4
"""The at-most-once step."""


def work(run: RunState, _ctx: Any) -> StepPlan:
    """A step with an effect, six times; then an end."""
    n = run.vars["n"] = run.vars.get("n", -1) + 1
    if n == STEPS:
        return StepPlan("work", complete_output=run.vars["did"])
    mode = EffectMode.AT_MOST_ONCE if n == ONCE else EffectMode.IDEMPOTENT
    effect = Effect(EffectType.TOOL_CALLS, {"n": n}, f"did.{n}", mode)
    return StepPlan("work", effect, next_node="work")


async def note(run: RunState, effect: Effect) -> EffectOutcome:
    """Append ``number pid`` to the ledger that the vars name, and wait at the slow step."""
    n = effect.payload["n"]
    append_line(run.vars["ledger"], f"{n} {os.getpid()}")
    await asyncio.sleep(3 if n == run.vars.get("slow") else 0)
    return EffectOutcome.completed(n * 10)


def hold(run: RunState, _ctx: Any) -> StepPlan:
    """A step with a blocking effect, at-most-once if the vars say so; then an end."""
    if "held_by" in run.vars:
        return StepPlan("hold", complete_output=run.vars["held_by"])
    mode = EffectMode.AT_MOST_ONCE if run.vars["once"] else EffectMode.IDEMPOTENT
    effect = Effect(EffectType.LLM_CALL, {}, "held_by", mode)
    return StepPlan("hold", effect, next_node="hold")


def block(run: RunState, _effect: Effect) -> EffectOutcome:
    """Block the thread, recorded in the ledger of the vars, until this process is released; return its pid."""
    return EffectOutcome.completed(blockers.block(run.vars["ledger"]))


async def serve(runtime: Runtime) -> None:
    """Serve them; `block` is the only plain function among the handlers."""
    specs = [
        WorkflowSpec("six", "work", {"work": work}),
        WorkflowSpec("held", "hold", {"hold": hold}),
    ]
    handlers = {EffectType.TOOL_CALLS: note, EffectType.LLM_CALL: block}
    flows = Flows(APP, specs, effect_handlers=handlers, blocking=True)
    await flows.register(runtime)
