"""Functions, schedules, agents and files of drawings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.tools import ApprovalPolicy
from actors._workflow.bundles import WorkflowBundleError, pack_workflow_bundle
from actors._workflow.integrations import local_llm
from actors._workflow.visual.checks import TYPES
from actors._workflow.visual.report import report_flow
from actors.workflow import (
    InMemoryLedgerStore,
    InMemoryRunStore,
    WorkflowRuntime,
    compile_visualflow,
    compile_visualflow_tree,
    open_waits,
)
from compose._mcp.toolsets.files import file_tools
from compose._mcp.toolsets.folder import ConfinedFolder
from tests.conformance.workflow.stores import GraphClock
from tests.unit.workflow.visual.drawn import (
    edges,
    flow,
    literal,
    node,
    output_of,
    play,
    problems,
    reading,
    runtime,
)

if TYPE_CHECKING:
    from pathlib import Path

    from actors.workflow import RunState


@pytest.mark.item(464)
@pytest.mark.parametrize(
    ("data", "output"),
    [
        ({"expression": "a + b"}, 3),
        ({"expression": "x['a'] * 10 + len(input)"}, 12),
        ({"code": "def transform(given):\n    return given['b']"}, 2),
        ({"code": "def f(given):\n    return 5", "functionName": "f"}, 5),
        ({}, {"a": 1, "b": 2}),
    ],
)
def test_a_function_is_an_expression_or_code(data: dict[str, Any], output: Any) -> None:
    """Of its pins, in the sandbox; without either it gives its pins."""
    function_node = node("n", "function", pinDefaults={"b": 2}, **data)
    drawn = flow(
        literal("v", 1),
        function_node,
        node("e", "on_flow_end", "x"),
        wires=edges("s > e", "v.value > n.a", "n.result > e.x"),
    )
    assert output_of(drawn) == {"x": output}
    stepped = {**drawn, "edges": edges("s > n", "n > e", "v.value > n.a", "n.result > e.x")}
    assert output_of(stepped) == {"x": output}


def test_a_function_that_cannot_be_read_has_its_place() -> None:
    """That of the word that it is written with."""
    for word in ("expression", "code"):
        (problem,) = problems(flow(node("n", "function", **{word: "a +"}), wires=edges("s > n")))
        assert problem.startswith(f"/nodes/1/data/{word}: node 'n': ")


def scheduled(**data: Any) -> dict[str, Any]:
    """Return a flow that begins at times of a schedule, and notes each in a list."""
    return flow(
        node("t", "on_schedule", **data),
        node("add", "add_to_list", pinDefaults={"name": "at"}),
        wires=edges("t > add", "t.timestamp > add.item"),
        entry="t",
    )


def ticked(drawn: dict[str, Any], *seconds: float) -> RunState:
    """Return the run of a flow that is ticked after each pause."""
    clock, spec = GraphClock(), compile_visualflow(drawn)
    driver = WorkflowRuntime(
        run_store=InMemoryRunStore(), ledger_store=InMemoryLedgerStore(), clock=clock
    )
    run_id = driver.start(spec)
    state = driver.tick(spec, run_id)
    for pause_s in seconds:
        clock.advance(pause_s)
        state = driver.tick(spec, run_id)
    return state


@pytest.mark.item(464)
def test_a_schedule_begins_what_is_behind_it_each_time() -> None:
    """An interval comes again where execution ends, unless it is said otherwise; an instant comes once."""
    state = ticked(scheduled(eventConfig={"schedule": "5m"}), 299, 1, 300)
    assert (state.status, len(state.vars["at"])) == ("waiting", 2)
    assert state.vars["_temp"]["flow"]["frames"]["0"]["kind"] == "on_schedule"
    once = scheduled(eventConfig={"schedule": "5m", "recurrent": False})
    state = ticked(once, 300)
    assert (state.status, len(state.vars["at"])) == ("completed", 1)
    past = scheduled(pinDefaults={"schedule": "2001-01-01T00:00:00Z"})
    assert ticked(past).vars["at"] == ["2001-01-01T00:00:00+00:00"]


def test_a_schedule_that_is_none_is_refused() -> None:
    """When it is compiled, or where its pin gets it."""
    for text, words in (("soon", "'soon' is neither 30s, 5m, 1h nor an instant"), ("0s", "length")):
        (problem,) = problems(scheduled(eventConfig={"schedule": text}))
        assert problem.startswith("/nodes/0/data/eventConfig: node 't': its schedule")
        assert words in problem
        state = ticked(scheduled(pinExpressions={"schedule": f"'{text}'"}))
        assert words in str(state.error)


AGENT = node("a b", "agent", pinDefaults={"prompt": "Add 2.", "context": {"k": 1}})
AGENT["data"] |= {"agentConfig": {"tools": ["add"], "prompt": "other", "model": ""}}
ASKING = {
    **flow(
        AGENT,
        node("e", "on_flow_end", "x", "y"),
        wires=edges("s > a b", "a b > e", "a b.response > e.x", "a b.meta > e.y"),
    ),
    "version": "1",
}
NAME = "visual_react_agent_f_a_b"
ANSWERING = {
    **flow(
        reading("c", "context"),
        reading("t", "tools"),
        node("j", "stringify_json", pinDefaults={"mode": "compact", "sort_keys": True}),
        node("m", "make_object", "c", "t"),
        node("e", "on_flow_end", "response", "model", pinDefaults={"model": "m"}),
        wires=edges("s > e", "c.value > m.c", "t.value > m.t", "m.result > j.value")
        + edges("j.result > e.response"),
    ),
    "id": NAME,
}


@pytest.mark.item(464)
def test_an_agent_is_a_run_of_the_flow_with_its_name() -> None:
    """Its vars are the configuration and the pins; the task is in the context. Its answer is at a pin."""
    specs = compile_visualflow_tree("f", {"f": ASKING, NAME: ANSWERING})
    assert {*specs} == {"f", NAME}
    driver = runtime(*specs.values())
    run_id = driver.start(specs["f"])
    output = driver.tick(specs["f"], run_id).output
    context = {"k": 1, "messages": [], "task": "Add 2."}
    assert json.loads(output["x"]) == {"c": context, "t": ["add"]}
    assert output["y"]["model"] == "m"
    assert output["y"]["sub_run_id"]
    state = play(ASKING)
    assert NAME in str(state.error)


def test_the_flow_of_an_agent_is_packed(tmp_path: Path) -> None:
    """Or named, if it is not there."""
    (tmp_path / "f.json").write_text(json.dumps(ASKING), encoding="utf-8")
    with pytest.raises(
        WorkflowBundleError, match=rf"refers to flow '{NAME}', whose file is missing"
    ):
        pack_workflow_bundle(tmp_path / "f.json", tmp_path / "f.flow")
    (tmp_path / f"{NAME}.json").write_text(json.dumps(ANSWERING), encoding="utf-8")
    specs = pack_workflow_bundle(tmp_path / "f.json", tmp_path / "f.flow").specs()
    driver = runtime(*specs)
    run_id = driver.start(specs[0])
    assert '"task":"Add 2."' in driver.tick(specs[0], run_id).output["x"]


def filing(content: Any, path: str = "notes/a.md") -> dict[str, Any]:
    """Return a flow that writes a file, and reads it."""
    return flow(
        node("w", "write_file", pinDefaults={"file_path": path, "content": content}),
        node("r", "read_file"),
        node("e", "on_flow_end", "content", "bytes", "file_path"),
        wires=edges("s > w", "w > r", "r > e", "w.file_path > r.file_path", "w.bytes > e.bytes")
        + edges("r.content > e.content", "r.file_path > e.file_path"),
    )


def filed(drawn: dict[str, Any], folder: Path, *, is_free: bool = False) -> RunState:
    """Return the run of a flow whose host has the tools of a folder."""
    confined = ConfinedFolder(folder)
    approvals = ApprovalPolicy(never=frozenset({"write_file"} if is_free else ()))
    integration = local_llm({}, file_tools(confined), approvals=approvals)
    try:
        handlers: dict[str, Any] = {
            kind.value: handler for kind, handler in integration.blocking_handlers.items()
        }
        return play(drawn, **handlers)
    finally:
        integration.close()
        confined.close()


@pytest.mark.item(464)
def test_files_are_written_and_read_by_the_tools_of_the_host(tmp_path: Path) -> None:
    """What is JSON is data again."""
    cases = [
        ("x ä\n", "notes/a.md", "x ä\n", "x ä\n"),
        ('{"a": 1}', "a.json", '{\n  "a": 1\n}\n', {"a": 1}),
        ([1], "b.txt", "[\n  1\n]", [1]),
        ("{no", "c.txt", "{no", "{no"),
    ]
    for content, path, text, value in cases:
        state = filed(filing(content, path), tmp_path, is_free=True)
        assert state.status == "completed", state.error
        size = len(text.encode())
        expected = {"success": True, "content": value, "bytes": size, "file_path": path}
        assert state.output == expected
        assert (tmp_path / path).read_text(encoding="utf-8") == text
        assert state.vars["_temp"]["flow"]["results"] == {}


@pytest.mark.item(464)
def test_a_file_that_cannot_be_read_or_written_fails_the_run(tmp_path: Path) -> None:
    """By node and path; nothing behind it is executed. By default a person decides on what is written."""
    (tmp_path / "large").write_text("x" * 70_000, encoding="utf-8")
    for path, words in (
        ("../out", "../out: "),
        ("none.md", "none.md: "),
        ("large", "large has 70000 bytes"),
    ):
        read_node = node("r", "read_file", pinDefaults={"file_path": path})
        state = filed(
            flow(read_node, node("e", "on_flow_end"), wires=edges("s > r", "r > e")), tmp_path
        )
        assert state.status == "failed"
        assert "node 'r~'" in str(state.error)
        assert words in str(state.error)
    for content, path, words in (
        ("x", "", "it needs a file_path"),
        ("{", "a.json", "a.json is no JSON"),
    ):
        state = filed(filing(content, path), tmp_path)
        assert words in str(state.error)
    state = filed(filing("x"), tmp_path)
    (wait,) = open_waits(state)
    assert wait.prompt == "Allow the calls of tools: write_file?"


@pytest.mark.item(464, 466)
def test_types_of_the_editor_that_are_not_supported_name_the_way_out(tmp_path: Path) -> None:
    """At compile, and in the report."""
    drawn = flow(
        node("a", "read_pdf"),
        node("c", "make_context"),
        node("d", "random_int"),
        node("r", "read_file"),
        wires=edges("s > a", "a > r", "d.result > c.y", "c.result > a.z"),
    )
    path = tmp_path / "f.json"
    path.write_text(json.dumps(drawn), encoding="utf-8")
    nodes = {n.id: n for n in report_flow(path).nodes}
    words = {"a": "call_tool", "c": "make_object", "d": "a code node"}
    for name, word in words.items():
        (finding,) = nodes[name].findings
        assert finding.problem.startswith(f"node '{name}': nothing here executes the type")
        assert word in finding.remedy
    assert nodes["r"].is_supported
    assert nodes["r"].needs == "a handler of TOOL_CALLS"
    assert not {"read_pdf", "make_context", "random_int"} & TYPES


@pytest.mark.item(464)
@pytest.mark.parametrize(
    ("kind", "variables", "outputs"),
    [
        ("on_user_request", {"message": "m", "context": {"a": 1}}, ["m", {"a": 1}, None, None]),
        ("on_user_request", {}, ["", {}, None, None]),
        ("on_agent_message", {"message": "m", "channel": "x"}, ["m", None, "unknown", "c"]),
    ],
)
def test_an_entry_for_messages_gives_the_vars_that_make_up_one(
    kind: str, variables: Any, outputs: list[Any]
) -> None:
    """Those that are not there have defaults; the channel is that of the node."""
    pins = ("message", "context", "sender", "channel")
    wires = edges("n > e", *(f"n.{pin} > e.{pin}" for pin in pins))
    start = node("n", kind, eventConfig={"channel": "c"})
    drawn = flow(start, node("e", "on_flow_end", *pins), wires=wires, entry="n")
    assert [*output_of(drawn, variables=variables).values()] == outputs
