"""Flows on hosts whose models and tools are an agent, which is asked: once, whatever dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._workflow.integrations import RemoteAgent, hybrid_llm, remote_llm
from actors.errors import TerminalError
from actors.workflow import EffectType, RunStatus, StepPlan, WorkflowSpec
from tests.behaviour.agents import Acting
from tests.behaviour.flow_stage import asking, ending, single, staged

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed
    from tests.behaviour.flow_stage import Stage

T = EffectType
PAY = {"name": "pay", "arguments": {"order": 7}, "call_id": "c1"}


class Desk:
    """An agent that answers what flows ask, when the gate is open."""

    def __init__(self, bed: Bed, *answers: Any) -> None:
        self.bed, self.answers = bed, list(answers)
        self.asked: list[Any] = []

    async def act(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Answer each question with the next answer; an exception is raised."""
        for question in inbox:
            await ctx.step("ask", self.bed.world.do, "asked")
            await ctx.sleep_until_signal("go")
            self.asked.append(question.payload)
            answer = self.answers[len(self.asked) - 1]
            if isinstance(answer, Exception):
                raise answer
            await ctx.reply(question, answer)

    async def go(self, agent: AgentId) -> None:
        """Let the agent answer a question, when it has one."""
        await self.bed.until(lambda: self.bed.world.count["asked"] > len(self.asked))
        runs = [run async for run in _runs_of(self.bed, agent)]
        await self.bed.runtime.signal(runs[-1], "go")


async def _runs_of(bed: Bed, agent: AgentId) -> Any:
    for row in await bed.runtime.store.lists.runs(agent=agent):
        if not row.status.is_terminal:
            yield row.run_id


def conversation() -> WorkflowSpec:
    """Return a flow that asks a model, then executes the calls that it wants."""
    nodes = {
        "work": asking(T.LLM_CALL, {"prompt": "?", "tools": ["pay"]}, key="said", after="call"),
        "call": lambda run, ctx: asking(
            T.TOOL_CALLS, {"tool_calls": run.vars["said"]["tool_calls"]}, key="paid"
        )(run, ctx),
        "end": ending,
    }
    return WorkflowSpec("flow", "work", nodes)


async def pay(order: int) -> str:
    """Pay an order."""
    return f"paid {order}"


TOOLS = [Tool("pay", "Pays.", pay)]


async def play(bed: Bed, desk: Desk, *, restarts: int = 0, **more: Any) -> tuple[Stage, Any]:
    """Return the state of a run whose agent answers everything; hosts die before and behind a question."""
    agent = await bed.serve(desk.act)
    spec = more.pop("spec", None) or conversation()
    wired = remote_llm(RemoteAgent(agent, **more), TOOLS)
    stage = await staged(bed, spec, effect_handlers=wired.effect_handlers)
    run_id = await stage.runs.start("flow")
    for n in range(len(desk.answers)):
        await bed.seen(run_id, K.ASK_SENT, times=n + 1)
        if n < restarts:
            await stage.restart()
        await desk.go(agent)
    return stage, await stage.ended(run_id)


@pytest.mark.item(431)
@pytest.mark.parametrize("restarts", [0, 2], ids=["lives", "dies"])
async def test_an_agent_answers_for_model_and_tools(bed: Bed, restarts: int) -> None:
    """It is asked once for each, also if the host dies between question and answer."""
    rows = [{"call_id": "c1", "output": "paid 7"}]
    reply = {"tool_calls": [PAY], "usage": {"total_tokens": 9}}
    desk = Desk(bed, reply, {"results": rows})

    stage, state = await play(bed, desk, restarts=restarts)

    assert state.status is RunStatus.COMPLETED, state.error
    assert state.output["said"] == {"content": "", **reply}
    assert state.output["paid"]["results"] == [
        {"call_id": "c1", "name": "pay", "success": True, "output": "paid 7", "error": None}
    ]
    model, tools = desk.asked
    assert (model["effect"], model["run"]) == ("llm_call", state.run_id)
    assert (model["payload"]["prompt"], model["payload"]["tools"][0]["name"]) == ("?", "pay")
    assert tools == {"run": state.run_id, "effect": "tool_calls", "payload": {"tool_calls": [PAY]}}
    assert len(await bed.log(state.run_id, K.ASK_SENT)) == 2
    assert await stage.node_statuses(state.run_id) == [
        (node, status, 1)
        for node in ("work", "call")
        for status in ("started", "waiting", "completed")
    ]


@pytest.mark.item(431)
async def test_a_hybrid_asks_for_the_model_only(bed: Bed) -> None:
    """Branches ask agents of their own at the same time; tools are executed here."""
    rows: list[Any] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        question: Any = inbox[0].payload
        rows.append((ctx.agent_id.key, question["payload"]["prompt"]))
        return {"content": "", "tool_calls": [PAY]}

    type_ = bed.name().type
    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, act))
    wired = hybrid_llm(RemoteAgent(type_), TOOLS)
    nodes: dict[str, Any] = {
        f"b{n}": asking(T.LLM_CALL, {"prompt": str(n)}, key=f"b{n}") for n in range(3)
    }
    names = {node: node for node in nodes}
    nodes |= {
        "fork": lambda _run, _ctx: StepPlan("fork", parallel=names, next_node="call"),
        "call": asking(T.TOOL_CALLS, {"tool_calls": [PAY]}, key="paid"),
        "end": ending,
    }
    spec = WorkflowSpec("flow", "fork", nodes)
    stage = await staged(bed, spec, effect_handlers=wired.effect_handlers)

    state = await stage.play("flow")

    assert state.output["paid"]["results"][0]["output"] == "paid 7"
    assert sorted(row[1] for row in rows) == ["0", "1", "2"]
    assert len({row[0] for row in rows}) == 3


@pytest.mark.item(431)
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (TerminalError("no money"), "target_failed: no money"),
        ([1], "give a text, or an object with content"),
    ],
    ids=["fails", "is no answer"],
)
async def test_an_agent_without_an_answer_fails_the_run(
    bed: Bed, answer: Any, problem: str
) -> None:
    """The error says what came of the question."""
    _, state = await play(bed, Desk(bed, answer), spec=single(T.LLM_CALL, {"prompt": "?"}))
    assert state.status is RunStatus.FAILED
    assert problem in (state.error or "")


@pytest.mark.item(431)
@pytest.mark.parametrize("answer", [TerminalError("no money"), {"results": []}, None])
async def test_an_agent_without_results_fails_the_calls(bed: Bed, answer: Any) -> None:
    """The run goes on with rows that say why; `None` here is an agent that answers too late."""
    spec = single(T.TOOL_CALLS, {"tool_calls": [PAY]})
    desk = Desk(bed, *([] if answer is None else [answer]))
    _, state = await play(bed, desk, spec=spec, timeout_s=0.5 if answer is None else 60)
    (row,) = state.output["out"]["results"]
    assert (row["success"], row["call_id"]) == (False, "c1")
    expected = "no answer within 0.5 s" if answer is None else "no money"
    if isinstance(answer, dict):
        expected = "one result for each of c1"
    assert expected in row["error"]
