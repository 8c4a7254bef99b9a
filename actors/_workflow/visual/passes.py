"""The passes of the compiler: each returns a drawing without one thing that graphs do not have.

They remove reroutes, limits of wires, branches, and the values of pins that the way into a node decides.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from actors._workflow.visual.drawing import (
    INTO_CONTROL,
    OUT_OF_CONTROL,
    Drawing,
    DrawingFindings,
    DrawnNode,
    DrawnWire,
)

REROUTE: Final = "reroute"
CODE: Final = "code"
AGENT: Final = "agent"
SUBFLOW: Final = "subflowId"
INPUT: Final = "_input"
"""The name of all pins in code."""
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9_-]+")
LIMIT: Final = "loop_limit"
_OTHER: Final = {"true": "false", "false": "true"}

Pin = tuple[str, str]
"""A node and one of its pins."""


def without_reroutes(drawing: Drawing, findings: DrawingFindings) -> Drawing:
    """Return the drawing without reroutes.

    Wires lead from the sources of reroutes directly to their targets.
    """
    reroutes = {n.id for n in drawing.nodes.values() if n.type == REROUTE}
    if not reroutes:
        return drawing
    sources = _final_sources(_sources_of(reroutes, drawing, findings), reroutes)
    wires = []
    for wire in drawing.wires:
        if wire.target in reroutes:
            continue
        source = (wire.source, wire.out)
        if wire.source in reroutes:
            reroute_source = sources.get(wire.source)
            if reroute_source is None:
                continue
            source = reroute_source
        wires.append(replace(wire, source=source[0], out=source[1]))
    nodes = {
        name: _with_references(node, lambda pin: sources.get(pin[0]) if pin[0] in reroutes else pin)
        for name, node in drawing.nodes.items()
        if name not in reroutes
    }
    return replace(drawing, nodes=nodes, wires=tuple(wires))


def _sources_of(reroutes: set[str], drawing: Drawing, findings: DrawingFindings) -> dict[str, Pin]:
    sources: dict[str, Pin] = {}
    for wire in drawing.wires:
        if wire.is_control and {wire.source, wire.target} & reroutes:
            remedy = "Connect the nodes directly: a reroute carries data"
            findings.at_wire(wire, "execution goes through a reroute", remedy)
        elif wire.target in reroutes:
            if wire.target in sources:
                findings.at_wire(wire, "the reroute has another source, too", "Remove one")
            sources[wire.target] = (wire.source, wire.out)
    checked_names: set[str] = set()
    for name in sorted(reroutes):
        chain, current = {name}, name
        while (
            current not in checked_names and current in sources and sources[current][0] in reroutes
        ):
            current = sources[current][0]
            if current in chain:
                problem = "reroutes lead round in a circle"
                findings.at_node(drawing.nodes[name], problem, "Connect one to a source")
                sources.pop(current)
                break
            chain.add(current)
        checked_names |= chain
    return sources


def _final_sources(sources: dict[str, Pin], reroutes: set[str]) -> dict[str, Pin]:
    """Return the first pin that is no reroute's, against the direction of the wires, by reroute.

    A reroute without such a pin is left out. Each reroute is visited once.
    """
    pin_by_name: dict[str, Pin | None] = {}
    for name in sources:
        chain, pin = list[str](), None
        current: str | None = name
        while current is not None and current not in pin_by_name:
            chain.append(current)
            pin_by_name[current] = None
            pin = sources.get(current)
            current = pin[0] if pin is not None and pin[0] in reroutes else None
        if current is not None:
            pin = pin_by_name[current]
        pin_by_name |= dict.fromkeys(chain, pin)
    return {name: pin for name, pin in pin_by_name.items() if pin is not None}


def _with_references(node: DrawnNode, source_of: Any) -> DrawnNode:
    """Return a node whose values by route come from the sources of reroutes, not from the reroutes."""
    if not node.part("inputRouteOverrides"):
        return node
    overrides: dict[str, dict[str, Any]] = {}
    for pin, route, reference in override_references(node):
        source = source_of(reference)
        if source is not None:
            references_by_route = overrides.setdefault(pin, {})
            references_by_route[route] = {"sourceNodeId": source[0], "sourceHandle": source[1]}
    return replace(node, data={**node.data, "inputRouteOverrides": overrides})


def override_references(node: DrawnNode) -> Iterator[tuple[str, str, Pin]]:
    """Yield input pin, key of a route, and the source of the pin's value on this route."""
    for pin, references_by_route in node.part("inputRouteOverrides").items():
        for route, reference in (
            references_by_route if isinstance(references_by_route, dict) else {}
        ).items():
            if not isinstance(reference, dict):
                continue
            source = reference.get("sourceNodeId") or reference.get("source")
            out = reference.get("sourceHandle") or reference.get("handle")
            if isinstance(source, str) and isinstance(out, str):
                yield pin, route, (source, out)


def with_known_types(drawing: Drawing) -> Drawing:
    """Return the drawing with a ``code`` node for each ``function``, and the names of the flows of agents."""
    wired_inputs: dict[str, list[dict[str, Any]]] = {}
    for wire in drawing.wires:
        if not wire.is_control:
            wired_inputs.setdefault(wire.target, []).append({"id": wire.into})
    nodes = {
        name: _as_code(node, wired_inputs.get(name, []))
        if node.type == "function"
        else named_agent(node, drawing.id)
        for name, node in drawing.nodes.items()
    }
    return replace(drawing, nodes=nodes)


def _as_code(node: DrawnNode, wired_inputs: list[dict[str, Any]]) -> DrawnNode:
    """Return a node ``function`` as one of code; an expression has the names of its pins, and all as ``x``."""
    data, expression = dict(node.data), node.data.get("expression")
    if "code" not in data and isinstance(expression, str) and expression.strip():
        defaults = [{"id": pin} for pin in node.part("pinDefaults")]
        data["inputs"] = data.get("inputs") or [*wired_inputs, *defaults]
        data["codeBody"] = f"x = input = {INPUT}; return ({expression.strip()})"
    return replace(node, type=CODE, data=data)


def named_agent(node: DrawnNode, flow: str) -> DrawnNode:
    """Return a node ``agent`` with the name of its flow, as AbstractFlow names it; other nodes as they are."""
    if node.type != AGENT or node.data.get(SUBFLOW):
        return node
    words = [_UNSAFE.sub("_", text.strip()) or "unknown" for text in (flow, node.id)]
    return replace(node, data={**node.data, SUBFLOW: "_".join(["visual_react_agent", *words])})


def without_branches(drawing: Drawing) -> Drawing:
    """Return the drawing with a sequence, which goes on with ``done``, for each ``parallel``."""
    forks = {node.id for node in drawing.nodes.values() if node.type == "parallel"}
    nodes = {
        name: replace(node, type="sequence") if name in forks else node
        for name, node in drawing.nodes.items()
    }
    wires = tuple(
        replace(wire, out="done") if wire.source in forks and wire.out == "completed" else wire
        for wire in drawing.wires
    )
    return replace(drawing, nodes=nodes, wires=wires)


def without_limited_wires(drawing: Drawing, findings: DrawingFindings) -> Drawing:
    """Return the drawing with a node ``loop_limit`` in each wire that has a limit.

    At the limit execution takes the other way of an ``if``, if that way has no limit. Otherwise execution ends
    there.
    """
    limited_wires = [w for w in drawing.wires if w.limit is not None]
    for wire in limited_wires:
        maximum = wire.limit.get("max") if isinstance(wire.limit, dict) else None
        if not wire.is_control or isinstance(maximum, bool) or not isinstance(maximum, int | float):
            problem = "it has a loopLimit that cannot be used"
            findings.at_wire(wire, problem, 'Give an edge of execution {"max": 3}')
            return replace(drawing, wires=tuple(replace(w, limit=None) for w in drawing.wires))
    pins = {(w.source, w.out) for w in limited_wires}
    nodes, wires = dict(drawing.nodes), [w for w in drawing.wires if w.limit is None]
    ways: dict[Pin, DrawnWire] = {}
    for wire in drawing.wires:
        if wire.is_control:
            ways.setdefault((wire.source, wire.out), wire)
    limit_names: dict[str, dict[Pin, str]] = defaultdict(dict)
    reached_limits: dict[str, list[str]] = defaultdict(list)
    for wire in limited_wires:
        name = f"loop-limit:{wire.source}.{wire.out}->{wire.target}"
        data = {"pinDefaults": {"max": wire.limit["max"]}}
        nodes[name] = DrawnNode(name, LIMIT, data, drawing.nodes[wire.source].index)
        wires += [
            replace(wire, target=name, into=INTO_CONTROL, limit=None),
            DrawnWire(name, "again", wire.target, wire.into, is_control=True, index=wire.index),
        ]
        limit_names[wire.target][wire.source, wire.out] = name
        other_pin = (wire.source, _OTHER.get(wire.out, ""))
        if drawing.nodes[wire.source].type == "if" and other_pin in ways and other_pin not in pins:
            wires.append(replace(ways[other_pin], source=name, out="limit_reached", limit=None))
            reached_limits[ways[other_pin].target].append(name)
    for target in {**limit_names, **reached_limits}:
        nodes[target] = _with_limited_routes(
            nodes[target], limit_names[target], reached_limits[target]
        )
    return replace(drawing, nodes=nodes, wires=tuple(wires))


def _with_limited_routes(
    node: DrawnNode, limit_names: Mapping[Pin, str], reached_limits: Sequence[str]
) -> DrawnNode:
    """Return a node whose routes come from the limits in the wires into it. The routes' keys are kept.

    Args:
        node: The node.
        limit_names: By the source of a route: the limit that is in its wire now.
        reached_limits: The limits from which execution comes to the node when they are reached.
    """
    routes = node.data.get("entryRoutes")
    if isinstance(routes, list) and routes:
        new_routes = [
            _route_from_limit(route, limit_names) if isinstance(route, dict) else route
            for route in routes
        ]
        for name in reached_limits:
            source = {"sourceNodeId": name, "sourceHandle": "limit_reached"}
            new_routes.append({"key": f"{name}::limit_reached"} | source)
        return replace(node, data={**node.data, "entryRoutes": new_routes})
    if not limit_names:
        return node
    keys = {f"{source}::{out}": f"{name}::again" for (source, out), name in limit_names.items()}
    overrides = {
        pin: {keys.get(key, key): reference for key, reference in references_by_route.items()}
        for pin, references_by_route in node.part("inputRouteOverrides").items()
        if isinstance(references_by_route, dict)
    }
    return replace(node, data={**node.data, "inputRouteOverrides": overrides})


def _route_from_limit(route: dict[str, Any], limit_names: Mapping[Pin, str]) -> dict[str, Any]:
    source, out = (
        route.get("sourceNodeId") or route.get("source"),
        route.get("sourceHandle") or OUT_OF_CONTROL,
    )
    name = (
        limit_names.get((source, out)) if isinstance(source, str) and isinstance(out, str) else None
    )
    if name is None:
        return route
    limit_source = {"sourceNodeId": name, "sourceHandle": "again"}
    return {"key": f"{source}::{out}", **route} | limit_source


MUX: Final = "path_mux"
_AGAIN: Final = "Connect the edges again, or save the flow again"


def with_routes(drawing: Drawing, findings: DrawingFindings) -> Drawing:
    """Return the drawing with a node ``path_mux`` for each pin that has values by route.

    The wires into a node with such pins get the numbers of their routes. When execution takes such a wire, the
    wire's number is stored in the run's vars. The ``path_mux`` of a pin has an input for each route with a
    value, and one for all other routes.
    """
    ways: dict[str, list[DrawnWire]] = defaultdict(list)
    for wire in drawing.wires:
        if wire.is_control:
            ways[wire.target].append(wire)
    nodes, numbers = dict(drawing.nodes), dict[tuple[str, str, str], int]()
    muxes: dict[Pin, str] = {}
    new_wires: list[DrawnWire] = []
    for target, into in ways.items():
        if len(into) < 2:  # noqa: PLR2004 - a single way has no alternative
            continue
        keys = _keys_of(drawing.nodes[target], into, findings)
        overrides = _overrides_of(drawing, target, keys, findings)
        if not overrides:
            continue
        for number, (source, out) in enumerate(keys.values()):
            numbers[source, out, target] = number
        for pin, pins_by_route in overrides.items():
            pins_by_number = {
                number: pins_by_route[key]
                for number, key in enumerate(keys)
                if key in pins_by_route
            }
            new_wires += _add_mux(nodes, (target, pin), pins_by_number)
            muxes[target, pin] = new_wires[-1].source
    routed_wires = [_with_route(wire, numbers, muxes) for wire in drawing.wires]
    return replace(drawing, nodes=nodes, wires=(*routed_wires, *new_wires))


def _with_route(
    wire: DrawnWire, numbers: dict[tuple[str, str, str], int], muxes: dict[Pin, str]
) -> DrawnWire:
    """Return a wire of execution with the number of its route, and a wire of data led to its pin's mux."""
    if wire.is_control:
        return replace(wire, route=numbers.get((wire.source, wire.out, wire.target)))
    mux = muxes.get((wire.target, wire.into))
    return wire if mux is None else replace(wire, target=mux, into="fallback")


def _keys_of(node: DrawnNode, into: list[DrawnWire], findings: DrawingFindings) -> dict[str, Pin]:
    """Return the sources of the ways into a node by their keys, in the order of the node's data.

    The node's data must match the drawn wires, since data of another drawing would choose wrong values.
    """
    drawn_pins = dict.fromkeys((route.source, route.out) for route in into)
    routes = node.data.get("entryRoutes")
    keys: dict[str, Pin] = {}
    for index, route in enumerate(routes if isinstance(routes, list) else ()):
        source = (
            route.get("sourceNodeId") or route.get("source") if isinstance(route, dict) else None
        )
        if not isinstance(source, str):
            continue
        out = route.get("sourceHandle") or OUT_OF_CONTROL
        key = str(route.get("key") or f"{source}::{out}")
        if key in keys:
            problem = f"entryRoutes have the key {key!r} twice"
            findings.at_node(node, problem, "Give each a key of its own", "data", "entryRoutes")
        elif (source, out) not in drawn_pins:
            problem = f"entryRoutes mismatch: no edge comes from {source}.{out}"
            findings.at_node(node, problem, _AGAIN, "data", "entryRoutes", index)
        keys[key] = (source, str(out))
    if not keys:
        keys = {f"{source}::{out}": (source, out) for source, out in drawn_pins}
    for source, out in sorted({*drawn_pins} - {*keys.values()}):
        problem = f"entryRoutes mismatch: they lack the edge from {source}.{out}"
        findings.at_node(node, problem, _AGAIN, "data", "entryRoutes")
    if len(drawn_pins) < len(into):
        problem = "two edges of execution come from one pin"
        findings.at_node(node, problem, "Remove one")
    return keys


def _overrides_of(
    drawing: Drawing, target: str, keys: dict[str, Pin], findings: DrawingFindings
) -> dict[str, dict[str, Pin]]:
    node = drawing.nodes[target]
    overrides: dict[str, dict[str, Pin]] = {}
    for pin, route, source in override_references(node):
        path = ("data", "inputRouteOverrides", pin, route)
        if route not in keys:
            problem = f"the value of {pin!r} is for route {route!r}, which it does not have"
            findings.at_node(node, problem, _AGAIN, *path)
        elif source[0] not in drawing.nodes:
            problem = f"the value of {pin!r} comes from {source[0]!r}, which is no node"
            findings.at_node(node, problem, _AGAIN, *path)
        else:
            overrides.setdefault(pin, {})[route] = source
    return overrides


def _add_mux(
    nodes: dict[str, DrawnNode], pin: Pin, pins_by_number: dict[int, Pin]
) -> Iterator[DrawnWire]:
    """Add the node that has an input for each route to a pin; yield its wires, the wire to the pin last."""
    target, name = pin
    mux = f"path_mux:{target}.{name}"
    defaults = nodes[target].part("pinDefaults")
    data: dict[str, Any] = {"target": target}
    if name in defaults:
        data["pinDefaults"] = {"fallback": defaults[name]}
    nodes[mux] = DrawnNode(mux, MUX, data)
    for number, (source, out) in pins_by_number.items():
        yield DrawnWire(source, out, mux, f"in{number}", is_control=False)
    yield DrawnWire(mux, "out", target, name, is_control=False)
