"""Flows and agents that the tests' workers serve as tools. Importing it prints, as careless modules do."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from actors import AgentId
from actors.workflow import Effect, EffectType, Flows, StepPlan, WorkflowSpec

if TYPE_CHECKING:
    from actors import Message, RunContext
    from actors._kernel.runtime.ids import RunId
    from actors.workflow import RunState

sys.stdout.write("imported: this is no frame\n")


def _double(run: RunState, _: Any) -> StepPlan:
    sys.stdout.write("a node prints: this is no frame\n")
    sys.__stdout__.write("and keeps some of it: this is no frame")  # type: ignore[union-attr]
    os.write(1, b"and past Python: this is no frame\n")
    return StepPlan("double", complete_output={"doubled": run.vars["number"] * 2})


def _fail(run: RunState, _: Any) -> StepPlan:
    raise ValueError(f"nothing pays {run.vars['order']}")


def _ask(run: RunState, _: Any) -> StepPlan:
    effect = Effect(EffectType.ASK_USER, {"prompt": "Go?", "wait_key": "go"}, "said")
    return StepPlan("ask", effect, next_node="end")


def _end(run: RunState, _: Any) -> StepPlan:
    return StepPlan("end", complete_output={"said": run.vars["said"]})


flows = Flows(
    "shop",
    [
        WorkflowSpec("double", "double", {"double": _double}),
        WorkflowSpec("fail", "fail", {"fail": _fail}),
        WorkflowSpec("wait", "ask", {"ask": _ask, "end": _end}),
    ],
)


class Echo:
    """An agent that says what it was told, at once or when it may."""

    run_ids: ClassVar[list[RunId]] = []
    is_free = asyncio.Event()

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return it."""
        Echo.run_ids.append(ctx.run_id)
        if inbox[0].payload == "wait":
            await Echo.is_free.wait()
        return {"said": inbox[0].payload, "to": self.id.key}


agents = {"echo": Echo}
