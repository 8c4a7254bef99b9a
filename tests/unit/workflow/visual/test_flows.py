"""Whole flows: what is drawn is run."""

from __future__ import annotations

from typing import Any

import pytest

from actors.workflow import (
    InMemoryLedgerStore,
    InMemoryRunStore,
    WorkflowRuntime,
    compile_visualflow,
    compile_visualflow_tree,
    open_waits,
)
from tests.unit.workflow.visual.drawn import (
    edges,
    flow,
    literal,
    node,
    output_of,
    play,
    reading,
    runtime,
    setting,
)


def counting(*wires: str, **nodes: Any) -> dict[str, Any]:
    """Return a flow that adds a value to the variable ``sum`` at node ``set``, and ends with it."""
    return flow(
        *nodes.values(),
        reading("sum", "sum", 0),
        node("add", "add"),
        setting("set", "sum"),
        node("e", "on_flow_end", "sum"),
        wires=edges("sum.value > add.a", "add.result > set.value", "sum.value > e.sum", *wires),
    )


@pytest.mark.item(464)
def test_begin_and_end_are_the_vars_and_the_output() -> None:
    """Pins of the begin have defaults; those of the end without a value are null."""
    outputs = [{"id": "exec-out", "type": "execution"}, {"id": "a"}, {"id": "b"}]
    drawn = flow(
        node("s", "on_flow_start", outputs=outputs, pinDefaults={"a": 1, "b": 2}),
        node("e", "on_flow_end", "x", "y", "z"),
        wires=edges("s > e", "s.a > e.x", "s.b > e.y"),
    )
    assert output_of(drawn, variables={"a": 7}) == {"x": 7, "y": 2, "z": None}


def test_an_end_without_pins_gives_what_the_node_before_computed() -> None:
    """Names of the runtime are not among the vars; a value that is no object has a name."""
    for body, output in (("{'_x': 1}", {"_x": 1}), ("5", {"response": 5})):
        code = node("c", "code", codeBody=f"return {body}")
        drawn = flow(code, node("e", "on_flow_end"), wires=edges("s > c", "c > e"))
        assert output_of(drawn) == output
    direct = flow(node("e", "on_flow_end"), wires=[], entry="e")
    assert output_of(direct, variables={"n": 1}) == {"n": 1}


@pytest.mark.item(464)
@pytest.mark.parametrize(
    ("kind", "pins", "out", "total"),
    [
        ("for", {"start": 0, "end": 5}, "i", 10),
        ("for", {"start": 5, "end": 0, "step": -2}, "i", 9),
        ("for", {"start": 3, "end": 3}, "i", 0),
        ("loop", {"items": [1, 2, 30]}, "item", 33),
        ("loop", {"items": 4}, "item", 4),
        ("loop", {"items": None}, "item", 0),
    ],
)
def test_loops_count(kind: str, pins: Any, out: str, total: int) -> None:
    """Over numbers, whose end is not among them, and over lists; what is no list is one item."""
    loop = node("l", kind, pinDefaults=pins)
    drawn = counting("s > l", "l.loop > set", f"l.{out} > add.b", "l.done > e", loop=loop)
    assert output_of(drawn) == {"sum": total}


@pytest.mark.item(464)
def test_a_while_loop_looks_at_its_condition_each_time() -> None:
    """Values are computed when a node runs, not before."""
    drawn = counting(
        *("s > w", "w.loop > set", "w.done > e", "one.value > add.b"),
        *("sum.value > less.a", "less.result > w.condition"),
        w=node("w", "while"),
        one=literal("one", 1),
        less=node("less", "compare", pinDefaults={"op": "<", "b": 4}),
    )
    assert output_of(drawn) == {"sum": 4}


@pytest.mark.item(464)
def test_loops_within_loops_begin_anew() -> None:
    """The inner one for each pass of the outer one; a limit in it counts for each pass, too."""
    drawn = counting(
        *("s > o", "o.loop > l", "l.loop > limit", "limit.again > set", "o.done > e"),
        "l.item > add.b",
        o=node("o", "for", pinDefaults={"start": 0, "end": 3}),
        l=node("l", "loop", pinDefaults={"items": [1, 10]}),
        limit=node("limit", "loop_limit", pinDefaults={"max": 1}),
    )
    assert output_of(drawn) == {"sum": 33}


@pytest.mark.item(464)
def test_a_limit_lets_through_so_many_and_then_leads_on() -> None:
    """The count begins anew behind it."""
    drawn = counting(
        *("s > n", "n.again > set", "set > n", "n.limit_reached > e", "n.count > add.b"),
        n=node("n", "loop_limit", pinDefaults={"max": 3}),
    )
    assert output_of(drawn) == {"sum": 6}


def test_a_limit_of_an_edge_ends_a_loop_of_an_if() -> None:
    """Four passes: the first one, and three along the edge; then the other way."""
    drawn = counting(
        *("s > set", "set > i", "i.true > e", "i.false > set"),
        i=node("i", "if", pinDefaults={"condition": False}),
        one=literal("one", 1),
    )
    drawn["edges"] += edges("one.value > add.b")
    limited = next(edge for edge in drawn["edges"] if edge["sourceHandle"] == "false")
    limited["data"] = {"loopLimit": {"max": 3}}
    assert output_of(drawn) == {"sum": 4}


@pytest.mark.item(464)
@pytest.mark.parametrize(("value", "way"), [("a", "A"), (2, "B"), ("z", "other"), (None, "other")])
def test_a_switch_compares_texts(value: Any, way: str) -> None:
    """A case of the text of a number is that of the number."""
    cases = [{"id": "1", "value": "a"}, {"id": "2", "value": "2"}]
    ways = {"case:1": "A", "case:2": "B", "default": "other"}
    drawn = flow(
        node("w", "switch", switchConfig={"cases": cases}, pinDefaults={"value": value}),
        *(setting(name, "way", value=name) for name in ways.values()),
        reading("v", "way"),
        node("e", "on_flow_end", "way"),
        wires=edges("s > w", "v.value > e.way", *(f"w.{out} > {to}" for out, to in ways.items()))
        + edges(*(f"{to} > e" for to in ways.values())),
    )
    assert output_of(drawn) == {"way": way}


@pytest.mark.item(464)
def test_a_sequence_goes_each_way_to_its_end() -> None:
    """In the order of the numbers of its pins, whatever their order in the file."""
    items = [
        node(f"n{number}", "add_to_list", pinDefaults={"name": "l", "item": number})
        for number in range(12)
    ]
    ways = [f"q.then:{number} > n{number}" for number in reversed(range(12))]
    drawn = flow(node("q", "sequence"), *items, wires=edges("s > q", *ways))
    state = play(drawn)
    assert state.vars["l"] == [*range(12)]
    assert state.output["success"] is True


@pytest.mark.item(464)
def test_branches_wait_at_the_same_time_and_meet() -> None:
    """One with a loop and a sequence of its own; what each computed is read behind the join."""
    drawn = flow(
        node("p", "parallel"),
        node("q1", "ask_user", pinDefaults={"prompt": "one"}),
        node("l", "for", pinDefaults={"start": 0, "end": 2}),
        node("q2", "ask_user", pinDefaults={"prompt": "two"}),
        setting("x", "x"),
        setting("after", "after", value=1),
        node("e", "on_flow_end", "a", "b"),
        wires=edges(
            *("s > p", "p.then:0 > q1", "p.then:1 > l", "l.loop > q2", "p.completed > after"),
            *("l.done > x", "q2.response > x.value", "after > e"),
            *("q1.response > e.a", "q2.response > e.b"),
        ),
    )
    spec = compile_visualflow(drawn)
    driver = runtime(spec)
    run_id = driver.start(spec)
    state = driver.tick(spec, run_id)
    assert [w.prompt for w in open_waits(state)] == ["one", "two"]
    for prompt, answer in (("two", "no"), ("two", "yes"), ("one", "ja")):
        wait = next(w for w in open_waits(state) if w.prompt == prompt)
        state = driver.resume(spec, run_id, str(wait.wait_key), {"response": answer})
    assert state.status == "completed", state.error
    assert state.output == {"success": True, "a": "ja", "b": "yes"}
    assert state.vars["x"] == "yes"
    assert state.vars["_temp"]["flow"]["frames"] == {}


@pytest.mark.item(464)
def test_an_end_in_a_branch_is_that_of_the_run() -> None:
    """Of two the first one's; the other branch goes on until then, and nothing comes behind the join."""
    inner = edges("l.loop > p2", "p2.then:0 > e1", "p2.completed > late")
    drawn = flow(
        node("p", "parallel"),
        node("l", "for", pinDefaults={"start": 0, "end": 2}),
        node("p2", "parallel"),
        node("e1", "on_flow_end", "x", pinDefaults={"x": 1}),
        node("e2", "on_flow_end", "x", pinDefaults={"x": 2}),
        setting("did", "did", value=True),
        setting("late", "late", value=True),
        wires=edges("s > p", "p.then:0 > l", "p.then:1 > did", "did > e2", "p.completed > late")
        + inner,
    )
    state = play(drawn)
    assert state.output == {"success": True, "x": 1}
    assert state.vars["did"] is True
    assert "late" not in state.vars


@pytest.mark.item(465)
def test_the_way_in_chooses_the_value_of_a_pin_over_a_restart() -> None:
    """The first question is the pin's own, each further one is the last answer."""
    routes = [
        {"key": "s::exec-out", "sourceNodeId": "s", "sourceHandle": "exec-out"},
        {"key": "q::exec-out", "sourceNodeId": "q", "sourceHandle": "exec-out"},
    ]
    override = {"q::exec-out": {"sourceNodeId": "q", "sourceHandle": "response"}}
    drawn = flow(
        node(
            "q",
            "ask_user",
            "prompt",
            pinDefaults={"prompt": "start"},
            entryRoutes=routes,
            inputRouteOverrides={"prompt": override},
        ),
        wires=edges("s > q", "q > q"),
    )
    runs, ledger = InMemoryRunStore(), InMemoryLedgerStore()
    spec = compile_visualflow(drawn)
    run_id = WorkflowRuntime(run_store=runs, ledger_store=ledger).start(spec)
    state = WorkflowRuntime(run_store=runs, ledger_store=ledger).tick(spec, run_id)
    prompts = []
    for answer in ("first", "second"):
        assert state.waiting is not None
        prompts.append(state.waiting.prompt)
        driver = WorkflowRuntime(run_store=runs, ledger_store=ledger)  # another process
        again = compile_visualflow(drawn)
        state = driver.resume(again, run_id, str(state.waiting.wait_key), {"response": answer})
    assert state.waiting is not None
    assert [*prompts, state.waiting.prompt] == ["start", "first", "second"]


@pytest.mark.item(464)
def test_a_listener_waits_again_where_nothing_follows() -> None:
    """An end of the flow ends it."""
    drawn = flow(
        node("on", "on_event", eventConfig={"name": "ping", "scope": "global"}),
        node("add", "add_to_list", pinDefaults={"name": "heard"}),
        node("is", "compare", pinDefaults={"b": "stop"}),
        node("i", "if"),
        node("e", "on_flow_end", "last"),
        wires=edges(
            "on > add", "add > i", "i.true > e", "on.payload > add.item", "on.payload > e.last"
        )
        + edges("on.payload > is.a", "is.result > i.condition"),
        entry="on",
    )
    state = play(drawn, *({"payload": payload} for payload in ("a", "b", "stop")))
    assert state.output == {"success": True, "last": "stop"}
    assert state.vars["heard"] == ["a", "b", "stop"]


@pytest.mark.item(464)
def test_a_tree_of_flows_runs() -> None:
    """A sub-flow gets its pins as vars; its outputs are pins. Two flows may refer to each other."""
    child = flow(
        node("two", "multiply", pinDefaults={"b": 2}),
        reading("n", "n"),
        node("e", "on_flow_end", "double"),
        wires=edges("s > e", "n.value > two.a", "two.result > e.double"),
    )
    parent = flow(
        node("c", "subflow", "n", subflowId="child", outputs=[{"id": "double"}]),
        node("e", "on_flow_end", "x"),
        literal("n", 21),
        wires=edges("s > c", "c > e", "n.value > c.n", "c.double > e.x"),
    )
    back = flow(node("c", "subflow", subflowId="parent"), wires=edges("s > c"))
    flows = {
        "parent": {**parent, "id": "parent"},
        "child": {**child, "id": "child"},
        "back": {**back, "id": "back"},
    }
    specs = compile_visualflow_tree("parent", flows)
    assert {*specs} == {"parent", "child"}
    assert {*compile_visualflow_tree("back", flows)} == {"back", "parent", "child"}
    driver = runtime(*specs.values())
    run_id = driver.start(specs["parent"])
    state = driver.tick(specs["parent"], run_id)
    assert state.output == {"success": True, "x": 42}


@pytest.mark.item(464)
def test_a_crash_keeps_the_index_of_a_loop() -> None:
    """The vars of a run in the middle of a loop go on with the next item, in another process."""
    drawn = flow(
        node("l", "loop", pinDefaults={"items": ["a", "b", "c"]}),
        node("q", "ask_user", "prompt"),
        node("e", "on_flow_end", "total"),
        wires=edges("s > l", "l.loop > q", "l.item > q.prompt", "l.done > e", "l.total > e.total"),
    )
    questions = []
    for many in range(3):
        state = play(drawn, *({"response": ""} for _ in range(many)))
        assert state.waiting is not None
        questions.append(
            (state.waiting.prompt, state.vars["_temp"]["flow"]["frames"]["0"]["index"])
        )
    assert questions == [("a", 1), ("b", 2), ("c", 3)]
    assert output_of(drawn, "", "", "") == {"total": 3}


@pytest.mark.item(464)
@pytest.mark.parametrize("has_completed", [True, False])
def test_branches_of_a_sequential_flow_go_one_after_the_other(has_completed: bool) -> None:
    """In the order of their pins; a wait holds those behind it, which read what was set before."""
    drawn = flow(
        node("p", "parallel"),
        node("ask", "ask_user", pinDefaults={"prompt": "?"}),
        *(node(name, "add_to_list", pinDefaults={"name": "x", "item": name}) for name in "abc"),
        reading("r", "x"),
        node("e", "on_flow_end", "x"),
        wires=edges("s > p", "p.then:10 > c", "p.then:1 > b", "p.then:0 > ask", "ask > a")
        + edges("r.value > e.x", *(["p.completed > e"] if has_completed else ["c > e"])),
    )
    spec = compile_visualflow(drawn, sequential=True)
    driver = runtime(spec)
    run_id = driver.start(spec)
    state = driver.tick(spec, run_id)
    (wait,) = open_waits(state)
    assert "x" not in state.vars
    state = driver.resume(spec, run_id, str(wait.wait_key), {"response": "x"})
    assert state.output == {"success": True, "x": ["a", "b", "c"]}
    assert spec.hash == compile_visualflow({**drawn, "sequential": True}).hash
    assert spec.hash == compile_visualflow_tree("f", {"f": drawn}, sequential=True)["f"].hash
    assert spec.hash != compile_visualflow({**drawn, "sequential": False}).hash


def test_an_end_in_a_branch_of_a_sequential_flow_ends_the_run() -> None:
    """The branches behind it are not executed."""
    drawn = flow(
        node("p", "parallel"),
        setting("a", "x", value=1),
        node("e", "on_flow_end", "x"),
        wires=edges("s > p", "p.then:0 > e", "p.then:1 > a", "p.completed > a"),
    )
    state = play({**drawn, "sequential": True})
    assert (state.output, "x" in state.vars) == ({"success": True, "x": None}, False)
