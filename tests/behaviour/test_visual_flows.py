"""VisualFlow on agents: the drawn graph is executed, over crashes of hosts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from actors._workflow.hosted.flows import Flows
from actors._workflow.integrations import local_llm
from actors.errors import RegistrationError
from actors.workflow import compile_visualflow, compile_visualflow_tree
from compose._mcp.toolsets.files import file_tools
from compose._mcp.toolsets.folder import ConfinedFolder
from compose.web import app
from tests.behaviour.agents import Acting
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.flow_stage import staged
from tests.behaviour.web import WebClient
from tests.unit.workflow.visual.drawn import edges, flow, node, reading, setting

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.agent.message import Message
    from actors._kernel.agent.tools import Tool
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@pytest.mark.item(464, 465)
async def test_loops_branches_and_routes_survive_crashes(bed: Bed) -> None:
    """A loop continues with its next item, a branch with its wait, a question with the value of its route."""
    routes = [
        {"key": "first", "sourceNodeId": "l", "sourceHandle": "loop"},
        {"key": "again", "sourceNodeId": "i", "sourceHandle": "false"},
    ]
    override = {"again": {"sourceNodeId": "ask", "sourceHandle": "response"}}
    drawn = flow(
        node("p", "parallel"),
        node("l", "loop", pinDefaults={"items": ["a", "b"]}),
        node(
            "ask",
            "ask_user",
            "prompt",
            entryRoutes=routes,
            inputRouteOverrides={"prompt": override},
        ),
        node("is", "compare", pinDefaults={"b": "ok"}),
        node("i", "if"),
        node("add", "add_to_list", pinDefaults={"name": "done"}),
        node("other", "ask_user", pinDefaults={"prompt": "other"}),
        setting("said", "said"),
        reading("r", "done"),
        reading("o", "said"),
        node("e", "on_flow_end", "done", "said", "many", pinExpressions={"many": "len(vars.done)"}),
        wires=edges(
            *("s > p", "p.then:0 > l", "p.then:1 > other", "other > said", "p.completed > e"),
            *("l.loop > ask", "l.item > ask.prompt", "ask > i", "i.false > ask", "i.true > add"),
            *("ask.response > is.a", "is.result > i.condition", "l.item > add.item"),
            *("other.response > said.value", "r.value > e.done", "o.value > e.said"),
        ),
    )
    stage = await staged(bed, compile_visualflow(drawn))
    run_id = await stage.runs.start("f")
    prompts, waits = [], await stage.waits(run_id, 2)
    for answer in ("no", "ok", "ok"):
        waits = await stage.waits(run_id, 2)
        (wait,) = [wait for wait in waits if wait.prompt != "other"]
        prompts.append(wait.prompt)
        await stage.restart()
        await stage.runs.resume(run_id, str(wait.wait_key), {"response": answer})
    (other,) = [wait for wait in waits if wait.prompt == "other"]
    await stage.runs.resume(run_id, str(other.wait_key), {"response": "x"})
    state = await stage.ended(run_id)

    assert prompts == ["a", "no", "b"]
    assert state.output == {"success": True, "done": ["a", "b"], "said": "x", "many": 2}


@pytest.mark.item(464, 465)
async def test_branches_of_a_sequential_flow_wait_for_each_other(bed: Bed) -> None:
    """The second one begins behind the answer to the first one, after the host died, too."""
    drawn = flow(
        node("p", "parallel"),
        node("a", "ask_user", pinDefaults={"prompt": "a"}),
        node("b", "ask_user", pinDefaults={"prompt": "b"}),
        node("e", "on_flow_end", "a", "b"),
        wires=edges("s > p", "p.then:0 > a", "p.then:1 > b", "p.completed > e")
        + edges("a.response > e.a", "b.response > e.b"),
    )
    stage = await staged(bed, compile_visualflow(drawn, sequential=True))
    run_id = await stage.runs.start("f")
    prompts = []
    for answer in (1, 2):
        (wait,) = await stage.waits(run_id)
        prompts.append(wait.prompt)
        await stage.restart()
        await stage.runs.resume(run_id, str(wait.wait_key), {"response": answer})
    state = await stage.ended(run_id)

    assert (prompts, state.output) == (["a", "b"], {"success": True, "a": 1, "b": 2})


def on_the_loop(tool: Tool) -> Tool:
    """Return a tool that has no thread: virtual time waits for none."""

    async def call(**arguments: Any) -> Any:
        return tool.run(**arguments)

    return replace(tool, run=call, thread=False)


@pytest.mark.item(464)
async def test_schedules_agents_functions_and_files_outlive_hosts(bed: Bed, tmp_path: Path) -> None:
    """A schedule's time begins a run of an agent's flow; its answer is in a file once a person agrees."""
    agent = flow(
        reading("c", "context"),
        node("n", "function", expression="c['task'].upper()"),
        node("e", "on_flow_end", "response"),
        wires=edges("s > e", "c.value > n.c", "n.result > e.response"),
    )
    drawn = flow(
        node("t", "on_schedule", eventConfig={"schedule": "50ms"}),
        node("a", "agent", pinDefaults={"prompt": "go"}),
        node("w", "write_file", pinDefaults={"file_path": "out/a.txt"}),
        node("r", "read_file", pinDefaults={"file_path": "out/a.txt"}),
        node("e", "on_flow_end", "x"),
        wires=edges("t > a", "a > w", "w > r", "r > e", "a.response > w.content")
        + edges("r.content > e.x"),
        entry="t",
    )
    name = "visual_react_agent_f_a"
    specs = compile_visualflow_tree("f", {"f": drawn, name: {**agent, "id": name}})
    folder = ConfinedFolder(tmp_path)
    handlers = local_llm({}, [on_the_loop(tool) for tool in file_tools(folder)]).effect_handlers
    stage = await staged(bed, *specs.values(), effect_handlers=handlers)
    run_id = await stage.runs.start("f")
    (wait,) = await stage.waits(run_id)
    await stage.restart()
    await stage.runs.resume(run_id, str(wait.wait_key), {"approved": True})
    state = await stage.ended(run_id)
    folder.close()

    assert wait.prompt == "Allow the calls of tools: write_file?"
    assert state.output == {"success": True, "x": "GO"}, state.error
    assert (tmp_path / "out" / "a.txt").read_text(encoding="utf-8") == "GO"


@pytest.mark.item(464)
async def test_an_agent_of_a_drawing_may_be_one_of_the_hosts(bed: Bed) -> None:
    """Its run gets the prompt as text; a death of a host changes nothing, and the wait names the run."""
    drawn = flow(
        node("a", "agent", pinDefaults={"prompt": "Ann"}),
        node("e", "on_flow_end", "x", "y"),
        wires=edges("s > a", "a > e", "a.response > e.x", "a.meta > e.y"),
    )
    name, spec = bed.name().type, compile_visualflow(drawn)
    helper = {"visual_react_agent_f_a": name}
    with pytest.raises(RegistrationError, match="'f' is a flow and an agent"):
        Flows("x", [spec], agents={"f": name})
    stage = await staged(bed, spec, agents=helper)
    payloads: list[Any] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        payloads.append(inbox[0].payload)
        return (await ctx.approval("greet")).is_approved and "Hello"

    await bed.runtime.register_type(name, lambda id_: Acting(id_, act))
    run_id = await stage.runs.start("f")
    await bed.until(lambda: payloads)
    (child,) = await bed.runtime.children(run_id)
    async with asyncio.timeout(LIMIT_S):
        open_ = bed.runtime.approvals.open
        while not (requests := await open_(run_id=child.run_id)):  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.01)
    view = await WebClient(app(bed.runtime)).get(f"/v1/graph-runs/{run_id}")
    await stage.restart()
    await bed.runtime.register_type(name, lambda id_: Acting(id_, act))
    await bed.runtime.approvals.decide(requests[0].id, approve=True, by="Ann")
    state = await stage.ended(run_id)

    assert (view["wait"]["run"], view["wait"]["sub_waiting"]) == (child.run_id, None)
    assert child.agent_id.type == name
    assert state.output == {"success": True, "x": "Hello", "y": {"sub_run_id": child.run_id}}
    assert [payload["text"] for payload in payloads[:1]] == ["Ann"]
