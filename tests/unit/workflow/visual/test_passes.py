"""The passes of the compiler: what each makes of a drawing."""

from __future__ import annotations

from typing import Any

import pytest

from actors._workflow.visual.drawing import Drawing, DrawingFindings, read_drawing
from actors._workflow.visual.passes import with_routes, without_limited_wires, without_reroutes
from tests.unit.workflow.visual.drawn import edges, flow, literal, node

ROUTES = [
    {"key": "true", "sourceNodeId": "i", "sourceHandle": "true"},
    {"key": "false", "sourceNodeId": "i", "sourceHandle": "false"},
]
OTHER = {"prompt": {"false": {"sourceNodeId": "b", "sourceHandle": "value"}}}


def drawing_of(drawn: dict[str, Any]) -> Drawing:
    """Return a flow that can be read."""
    findings = DrawingFindings("f")
    drawing = read_drawing(drawn, findings)
    assert findings.items == []
    return drawing


def wires_of(drawing: Drawing) -> list[str]:
    """Return the wires of a drawing in words."""
    return [
        f"{wire.source}.{wire.out} > {wire.target}.{wire.into}"
        + ("" if wire.route is None else f" [{wire.route}]")
        for wire in drawing.wires
    ]


def choosing(**ask: Any) -> dict[str, Any]:
    """Return a flow with two ways into a question."""
    return flow(
        node("i", "if"),
        literal("a", "A"),
        literal("b", "B"),
        node("q", "ask_user", "prompt", **ask),
        wires=edges("s > i", "i.true > q", "i.false > q", "a.value > q.prompt"),
    )


@pytest.mark.item(464)
def test_reroutes_become_wires() -> None:
    """Chains of them, also where a value by route comes from one; one without a source leads nowhere."""
    override = {"x": {"k": {"sourceNodeId": "r2", "sourceHandle": "out"}}}
    drawn = flow(
        literal("a", 1),
        node("r1", "reroute"),
        node("r2", "reroute"),
        node("r3", "reroute"),
        node("q", "ask_user", inputRouteOverrides=override),
        wires=edges("a.value > r1.in", "r1.out > r2.in", "r2.out > q.prompt", "r3.out > q.choices"),
    )
    findings = DrawingFindings("f")
    drawing = without_reroutes(drawing_of(drawn), findings)

    assert wires_of(drawing) == ["a.value > q.prompt"]
    assert [*drawing.nodes] == ["s", "a", "q"]
    source = {"sourceNodeId": "a", "sourceHandle": "value"}
    assert drawing.nodes["q"].data["inputRouteOverrides"] == {"x": {"k": source}}
    assert findings.items == []


@pytest.mark.parametrize(
    ("wires", "words"),
    [
        (["s > r", "a.value > q.prompt"], "execution goes through a reroute"),
        (["a.value > r.in", "s.x > r.in"], "the reroute has another source, too"),
        (["r.out > t.in", "t.out > r.in"], "lead round in a circle"),
    ],
)
def test_reroutes_that_are_wrong(wires: list[str], words: str) -> None:
    """Each is named."""
    nodes = [literal("a", 1), node("r", "reroute"), node("t", "reroute"), node("q", "ask_user")]
    findings = DrawingFindings("f")
    without_reroutes(drawing_of(flow(*nodes, wires=edges(*wires))), findings)
    assert any(words in finding.problem for finding in findings.items)


@pytest.mark.item(465)
def test_the_value_of_a_pin_by_route_is_a_node() -> None:
    """It has an input for each route with a value of its own, and the wire of the pin for all others."""
    findings = DrawingFindings("f")
    drawn = choosing(entryRoutes=ROUTES, inputRouteOverrides=OTHER)
    drawing = with_routes(drawing_of(drawn), findings)

    assert findings.items == []
    assert wires_of(drawing) == [
        "s.exec-out > i.exec-in",
        "i.true > q.exec-in [0]",
        "i.false > q.exec-in [1]",
        "a.value > path_mux:q.prompt.fallback",
        "b.value > path_mux:q.prompt.in1",
        "path_mux:q.prompt.out > q.prompt",
    ]
    assert drawing.nodes["path_mux:q.prompt"].data == {"target": "q"}


def test_several_ways_in_without_values_of_their_own_are_left_as_they_are() -> None:
    """Nothing depends on the way."""
    drawing = drawing_of(choosing())
    assert with_routes(drawing, DrawingFindings("f")) == drawing


@pytest.mark.item(465)
@pytest.mark.parametrize(
    ("routes", "overrides", "words"),
    [
        ([ROUTES[0], {**ROUTES[1], "sourceHandle": "maybe"}], {}, "no edge comes from i.maybe"),
        ([ROUTES[0]], {}, "they lack the edge from i.false"),
        ([ROUTES[0], {**ROUTES[1], "key": "true"}], {}, "the key 'true' twice"),
        (
            ROUTES,
            {"prompt": {"no": OTHER["prompt"]["false"]}},
            "route 'no', which it does not have",
        ),
        (
            ROUTES,
            {"prompt": {"true": {"sourceNodeId": "z", "sourceHandle": "v"}}},
            "comes from 'z', which is no node",
        ),
    ],
)
def test_stale_routes_are_refused(routes: Any, overrides: Any, words: str) -> None:
    """They are those of another drawing, and would choose wrong values."""
    findings = DrawingFindings("f")
    drawn = choosing(entryRoutes=routes, inputRouteOverrides=overrides)
    with_routes(drawing_of(drawn), findings)
    assert any(words in finding.problem for finding in findings.items)
    assert {finding.pointer.rpartition("/data")[0] for finding in findings.items} == {"/nodes/4"}


@pytest.mark.item(464)
def test_a_limit_of_a_wire_is_a_node() -> None:
    """At the limit the other way of an if is gone; routes into the targets keep their keys in step."""
    drawn = choosing(entryRoutes=ROUTES, inputRouteOverrides=OTHER)
    drawn["edges"][2]["data"] = {"loopLimit": {"max": 2}}
    findings = DrawingFindings("f")
    drawing = without_limited_wires(drawing_of(drawn), findings)

    limit = "loop-limit:i.false->q"
    assert wires_of(drawing) == [
        "s.exec-out > i.exec-in",
        "i.true > q.exec-in",
        "a.value > q.prompt",
        f"i.false > {limit}.exec-in",
        f"{limit}.again > q.exec-in",
        f"{limit}.limit_reached > q.exec-in",
    ]
    assert drawing.nodes[limit].data == {"pinDefaults": {"max": 2}}
    routed = with_routes(drawing, findings)
    assert findings.items == []
    assert f"{limit}.again > q.exec-in [1]" in wires_of(routed)
    assert "b.value > path_mux:q.prompt.in1" in wires_of(routed)


def test_values_for_a_limited_edge_without_a_list_of_routes() -> None:
    """Their key is that of the edge, and becomes that of the node in it."""
    by_edge = {"prompt": {"i::false": OTHER["prompt"]["false"]}}
    drawn = choosing(inputRouteOverrides=by_edge)
    drawn["edges"][2]["data"] = {"loopLimit": {"max": 2}}
    findings = DrawingFindings("f")
    drawing = with_routes(without_limited_wires(drawing_of(drawn), findings), findings)
    assert findings.items == []
    assert "b.value > path_mux:q.prompt.in1" in wires_of(drawing)


@pytest.mark.parametrize(("index", "limit"), [(3, {"max": 2}), (2, {"max": "x"}), (2, 3)])
def test_a_limit_that_cannot_be_used(index: int, limit: Any) -> None:
    """One of a wire of data, or one that is no number."""
    drawn = choosing()
    drawn["edges"][index]["data"] = {"loopLimit": limit}
    findings = DrawingFindings("f")
    without_limited_wires(drawing_of(drawn), findings)
    (finding,) = findings.items
    assert finding.pointer == f"/edges/{index}"
