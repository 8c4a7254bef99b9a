"""VisualFlow on agents: what is drawn is executed, over deaths of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors.workflow import compile_visualflow
from tests.behaviour.flow_stage import staged
from tests.unit.workflow.visual.drawn import edges, flow, node, reading, setting

if TYPE_CHECKING:
    from tests.behaviour.bed import Bed


@pytest.mark.item(464, 465)
async def test_loops_branches_and_routes_outlive_hosts(bed: Bed) -> None:
    """A loop goes on with its next item, a branch with its wait, and a question with the value of its route."""
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
    asked, waits = [], await stage.waits(run_id, 2)
    for answer in ("no", "ok", "ok"):
        waits = await stage.waits(run_id, 2)
        (wait,) = [one for one in waits if one.prompt != "other"]
        asked.append(wait.prompt)
        await stage.restart()
        await stage.runs.resume(run_id, str(wait.wait_key), {"response": answer})
    (other,) = [one for one in waits if one.prompt == "other"]
    await stage.runs.resume(run_id, str(other.wait_key), {"response": "x"})
    state = await stage.ended(run_id)

    assert asked == ["a", "no", "b"]
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
    asked = []
    for answer in (1, 2):
        (wait,) = await stage.waits(run_id)
        asked.append(wait.prompt)
        await stage.restart()
        await stage.runs.resume(run_id, str(wait.wait_key), {"response": answer})
    state = await stage.ended(run_id)

    assert (asked, state.output) == (["a", "b"], {"success": True, "a": 1, "b": 2})
