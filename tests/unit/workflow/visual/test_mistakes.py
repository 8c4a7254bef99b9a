"""What is wrong with a drawing is said at once, with its place; nothing of it is run."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from actors._workflow.visual.drawing import is_visualflow
from actors.workflow import FlowError, check_flow, compile_visualflow, load_flow
from tests.unit.workflow.spoiling import JUNK, spoil
from tests.unit.workflow.visual.drawn import edges, flow, literal, node, play, problems

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.item(466)
def test_a_connected_type_that_nobody_knows_is_refused() -> None:
    """By its name, with all others at once; one without edges is decoration."""
    drawn = flow(
        node("a", "memory_recall_v99"),
        node("note", "sticky_note"),
        node("b", "ask_usr"),
        node("e", "on_flow_end"),
        wires=edges("s > a", "a > e", "b.response > e.x"),
    )
    with pytest.raises(FlowError) as refused:
        compile_visualflow(drawn, file="f.json")
    first, second = refused.value.findings
    assert str(first).startswith(
        "f.json#/nodes/1/type: node 'a': nothing here executes the type 'memory_recall_v99'"
    )
    assert second.remedy == "Is it 'ask_user'?"

    drawn["nodes"] = [n for n in drawn["nodes"] if n["id"] != "b"]
    drawn["nodes"][1]["type"], drawn["edges"] = "sequence", edges("s > e")
    assert play(drawn).output == {"success": True}


@pytest.mark.item(466)
def test_decoration_is_no_step() -> None:
    """Also of a type that is known."""
    drawn = flow(node("e", "on_flow_end"), node("x", "code", codeBody="?"), wires=edges("s > e"))
    assert [*compile_visualflow(drawn).nodes] == ["s", "e"]


TWO = [node("a", "ask_user"), node("e", "on_flow_end", "x")]
LOOP = [node("l", "for"), node("x", "set_var"), node("i", "if")]


@pytest.mark.parametrize(
    ("nodes", "wires", "prefix"),
    [
        (TWO, ["s > zz"], "/edges/0/target: there is no node 'zz'"),
        (
            TWO,
            ["s > a", "a.done > e"],
            "/edges/1: edge a.done -> e.exec-in: execution never leaves",
        ),
        (
            TWO,
            ["s > a", "s > e"],
            "/edges/1: edge s.exec-out -> e.exec-in: another edge of execution",
        ),
        (
            [*TWO, literal("v", 1)],
            ["s > a", "v.value > e.x", "a.response > e.x"],
            "/edges/2: edge a.response -> e.x: another edge leads to this pin, too",
        ),
        (
            [node("p", "add"), node("q", "add"), *TWO],
            ["s > e", "p.result > q.a", "q.result > p.a", "p.result > e.x"],
            "/nodes/1: node 'p': its value depends on itself",
        ),
        (
            LOOP,
            ["s > l", "l.loop > x", "x > i", "i.true > l"],
            "/edges/3: edge i.true -> l.exec-in: it leads back out of the body of a loop",
        ),
        (
            [node("c", "code", codeBody="x = 1\nreturn x +", inputs=[{"id": "in"}])],
            ["s > c"],
            "/nodes/1/data/codeBody: node 'c': ",
        ),
        (
            [node("c", "code", codeBody="return 1", pinDefaults={"permissions": "host"})],
            ["s > c"],
            "/nodes/1/data/codeBody: node 'c': it asks for the permissions 'host'",
        ),
        ([node("c", "subflow")], ["s > c"], "/nodes/1/data: node 'c': it names no flow"),
        (
            [node("c", "on_event")],
            ["s > c"],
            "/nodes/1/data/eventConfig: node 'c': it has no name of an event",
        ),
        (
            [node("c", "if", pinExpressions={"condition": "x > 1"})],
            ["s > c"],
            "/nodes/1/data/pinExpressions/condition: node 'c': pin 'condition': x > 1: 'x' is no",
        ),
        (
            [node("c", "if", pinExpressions={"condition": "vars["})],
            ["s > c"],
            "/nodes/1/data/pinExpressions/condition: node 'c': pin 'condition': vars[: it is no",
        ),
        (
            [node("c", "if", pinExpressions={"condition": 5})],
            ["s > c"],
            "/nodes/1/data/pinExpressions/condition: node 'c': the expression at pin",
        ),
    ],
)
def test_mistakes_have_their_place(nodes: Any, wires: list[str], prefix: str) -> None:
    """Each as it is drawn."""
    texts = problems(flow(*nodes, wires=edges(*wires)))
    assert any(text.startswith(prefix) for text in texts), texts


def test_a_line_of_code_is_that_of_the_author() -> None:
    """Not that of the function that is made of it; at run time, too."""
    pins = [{"id": "a"}, {"id": "b c"}]
    wrong = node("c", "code", codeBody="x = 1\ny = 2\nreturn x +", inputs=pins)
    (text,) = problems(flow(wrong, wires=edges("s > c")))
    assert text.endswith("(line 3)")
    raising = node("c", "code", codeBody="x = 1\nreturn x / 0", inputs=pins)
    state = play(flow(raising, wires=edges("s > c")))
    assert state.status == "failed"
    assert "(line 2)" in str(state.error)


@pytest.mark.parametrize(
    ("change", "prefix"),
    [
        ({"id": ""}, "/id: it has no id"),
        ({"id": "a\x00"}, "/id: its id has characters that cannot be kept"),
        ({"nodes": [{"id": "\ud800", "type": "if"}]}, "/nodes/0/id: a node has the id"),
        ({"nodes": [5]}, "/nodes/0: a node is no object"),
        ({"nodes": [{"id": "a", "type": "if"}] * 2}, "/nodes/1/id: node 'a' is there twice"),
        ({"nodes": [{"id": "a~", "type": "if"}]}, "/nodes/0/id: a node has the id 'a~'"),
        ({"nodes": [{"id": "a"}]}, "/nodes/0/type: node 'a' has no type"),
        ({"edges": {}}, "/edges: edges is no list"),
        ({"edges": [{"source": "s"}]}, "/edges/0: an edge has no sourceHandle"),
        ({"entryNode": "nobody"}, "/entryNode: there is no node 'nobody' to begin with"),
        (
            {"nodes": [], "entryNode": None},
            "/nodes: it has no node that execution could begin with",
        ),
        ({"sequential": "yes"}, "/sequential: sequential is neither true nor false"),
        ({"functions": 5}, "/functions: functions is no list"),
        ({"functions": [5]}, "/functions/0: function None: its name cannot be used"),
        ({"functions": [{"name": "len", "code": "?"}]}, "/functions/0: function 'len': its name"),
        ({"functions": [{"name": "f"}]}, "/functions/0: function 'f': it has no code"),
        (
            {"functions": [{"name": "f", "code": "def g(): pass"}]},
            "/functions/0: function 'f': its code has no def f",
        ),
        (
            {"functions": [{"name": "f", "code": "x = 1\ndef f(): ?"}]},
            "/functions/0: function 'f': Got unexpected",
        ),
        (
            {"functions": [{"name": "f", "code": "def f(): pass\ndef value(): pass"}]},
            "/functions/0: function 'f': it defines 'value', which has",
        ),
        (
            {"functions": [{"name": "f", "code": "def f(): pass"}] * 2},
            "/functions/1: function 'f': it defines 'f', which has",
        ),
        (
            {"nodes": [{"id": str(n), "type": "if"} for n in range(10_001)]},
            "/nodes: it has 10001 nodes",
        ),
    ],
)
def test_flows_that_cannot_be_read(change: dict[str, Any], prefix: str) -> None:
    """Whatever is in the place of what should be there."""
    drawn = {**flow(node("e", "on_flow_end"), wires=[]), **change}
    texts = problems(drawn)
    assert any(text.startswith(prefix) for text in texts), texts


def test_a_way_that_leads_nowhere_is_a_warning() -> None:
    """The flow runs without it."""
    drawn = flow(*TWO, wires=edges("s > e", "a > e"))
    (finding,) = check_flow(drawn)
    assert (finding.level, finding.pointer) == ("warning", "/nodes/1")
    assert play(drawn).status == "completed"


def test_files_are_told_apart_by_their_content(tmp_path: Path) -> None:
    """Nodes of a VisualFlow are a list, those of a flow document are an object."""
    drawn = flow(node("e", "on_flow_end"), wires=edges("s > e"))
    file = tmp_path / "f.json"
    file.write_text(json.dumps(drawn), encoding="utf-8")
    assert load_flow(file).hash == compile_visualflow(drawn).hash
    drawn["edges"][0]["target"] = "z"
    file.write_text(json.dumps(drawn), encoding="utf-8")
    with pytest.raises(FlowError) as refused:
        load_flow(file)
    assert refused.value.findings[0].file == str(file)
    assert is_visualflow(drawn)


def test_the_hash_is_that_of_what_is_executed() -> None:
    """Not of where a node is drawn, or what it is called; but of values far up the wires."""
    drawn = flow(
        literal("v", 1),
        node("n", "abs"),
        node("e", "on_flow_end", "x"),
        wires=edges("s > e", "v.value > n.value", "n.result > e.x"),
    )
    moved = copy.deepcopy(drawn)
    moved["nodes"][0] |= {"position": {"x": 1}}
    moved["nodes"][0]["data"] |= {"label": "Begin"}
    other = copy.deepcopy(drawn)
    other["nodes"][1]["data"]["literalValue"] = 2
    first = compile_visualflow(drawn)
    assert compile_visualflow(moved).hash == first.hash
    assert compile_visualflow(other).hash != first.hash


@pytest.mark.item(466)
def test_mutated_flows_are_refused_with_findings_or_compiled() -> None:
    """Whatever is in the place of a value: never another error."""
    whole = flow(
        node("p", "parallel"),
        node("l", "loop", pinDefaults={"items": [1]}),
        node("q", "ask_user", "prompt", entryRoutes=[], inputRouteOverrides={"prompt": {}}),
        node("w", "switch", switchConfig={"cases": [{"id": "1", "value": 1}]}),
        node("c", "concat", concatConfig={"separator": ","}),
        node("e", "on_flow_end", "x", pinExpressions={"x": "f(value) + vars.n"}),
        wires=edges("s > p", "p.then:0 > l", "l.loop > q", "p.completed > w", "w.case:1 > e")
        + edges("c.result > q.prompt", "l.item > c.a", "c.result > e.x"),
    )
    whole["functions"] = [{"name": "f", "code": "def f(x):\n    return x"}]
    refused = 0
    for seed in range(1000):
        rng, drawn = random.Random(seed), copy.deepcopy(whole)
        for _ in range(rng.randint(1, 3)):
            spoil(drawn, rng, JUNK)
        findings = check_flow(drawn)
        refused += any(finding.level == "error" for finding in findings)
    assert 200 < refused < 1000
