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
    reroutes = {one.id for one in drawing.nodes.values() if one.type == REROUTE}
    if not reroutes:
        return drawing
    sources = _resolved(_sources_of(reroutes, drawing, findings), reroutes)
    wires = []
    for wire in drawing.wires:
        if wire.target in reroutes:
            continue
        source = (wire.source, wire.out)
        if wire.source in reroutes:
            found = sources.get(wire.source)
            if found is None:
                continue
            source = found
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
    checked: set[str] = set()
    for name in sorted(reroutes):
        seen, at = {name}, name
        while at not in checked and at in sources and sources[at][0] in reroutes:
            at = sources[at][0]
            if at in seen:
                problem = "reroutes lead round in a circle"
                findings.at_node(drawing.nodes[name], problem, "Connect one to a source")
                sources.pop(at)
                break
            seen.add(at)
        checked |= seen
    return sources


def _resolved(sources: dict[str, Pin], reroutes: set[str]) -> dict[str, Pin]:
    """Return the first pin that is no reroute's, against the direction of the wires, by reroute.

    A reroute without such a pin is left out. Each reroute is visited once.
    """
    found: dict[str, Pin | None] = {}
    for name in sources:
        chain, pin = list[str](), None
        at: str | None = name
        while at is not None and at not in found:
            chain.append(at)
            found[at] = None
            pin = sources.get(at)
            at = pin[0] if pin is not None and pin[0] in reroutes else None
        if at is not None:
            pin = found[at]
        found |= dict.fromkeys(chain, pin)
    return {name: pin for name, pin in found.items() if pin is not None}


def _with_references(node: DrawnNode, found: Any) -> DrawnNode:
    """Return a node whose values by route come from the sources of reroutes, not from the reroutes."""
    if not node.part("inputRouteOverrides"):
        return node
    overrides: dict[str, dict[str, Any]] = {}
    for pin, route, reference in override_references(node):
        source = found(reference)
        if source is not None:
            by_route = overrides.setdefault(pin, {})
            by_route[route] = {"sourceNodeId": source[0], "sourceHandle": source[1]}
    return replace(node, data={**node.data, "inputRouteOverrides": overrides})


def override_references(node: DrawnNode) -> Iterator[tuple[str, str, Pin]]:
    """Yield input pin, key of a route, and the source of the pin's value on this route."""
    for pin, by_route in node.part("inputRouteOverrides").items():
        for route, one in (by_route if isinstance(by_route, dict) else {}).items():
            if not isinstance(one, dict):
                continue
            source = one.get("sourceNodeId") or one.get("source")
            out = one.get("sourceHandle") or one.get("handle")
            if isinstance(source, str) and isinstance(out, str):
                yield pin, route, (source, out)


def with_known_types(drawing: Drawing) -> Drawing:
    """Return the drawing with a ``code`` node for each ``function``, and the names of the flows of agents."""
    wired: dict[str, list[dict[str, Any]]] = {}
    for wire in drawing.wires:
        if not wire.is_control:
            wired.setdefault(wire.target, []).append({"id": wire.into})
    nodes = {
        name: _as_code(one, wired.get(name, []))
        if one.type == "function"
        else named_agent(one, drawing.id)
        for name, one in drawing.nodes.items()
    }
    return replace(drawing, nodes=nodes)


def _as_code(node: DrawnNode, wired: list[dict[str, Any]]) -> DrawnNode:
    """Return a node ``function`` as one of code; an expression has the names of its pins, and all as ``x``."""
    data, expression = dict(node.data), node.data.get("expression")
    if "code" not in data and isinstance(expression, str) and expression.strip():
        defaults = [{"id": one} for one in node.part("pinDefaults")]
        data["inputs"] = data.get("inputs") or [*wired, *defaults]
        data["codeBody"] = f"x = input = {INPUT}; return ({expression.strip()})"
    return replace(node, type=CODE, data=data)


def named_agent(node: DrawnNode, flow: str) -> DrawnNode:
    """Return a node ``agent`` with the name of its flow, as AbstractFlow names it; other nodes as they are."""
    if node.type != AGENT or node.data.get(SUBFLOW):
        return node
    words = [_UNSAFE.sub("_", one.strip()) or "unknown" for one in (flow, node.id)]
    return replace(node, data={**node.data, SUBFLOW: "_".join(["visual_react_agent", *words])})


def without_branches(drawing: Drawing) -> Drawing:
    """Return the drawing with a sequence, which goes on with ``done``, for each ``parallel``."""
    forks = {one.id for one in drawing.nodes.values() if one.type == "parallel"}
    nodes = {
        name: replace(one, type="sequence") if name in forks else one
        for name, one in drawing.nodes.items()
    }
    wires = tuple(
        replace(one, out="done") if one.source in forks and one.out == "completed" else one
        for one in drawing.wires
    )
    return replace(drawing, nodes=nodes, wires=wires)


def without_limited_wires(drawing: Drawing, findings: DrawingFindings) -> Drawing:
    """Return the drawing with a node ``loop_limit`` in each wire that has a limit.

    At the limit execution takes the other way of an ``if``, if that way has no limit. Otherwise execution ends
    there.
    """
    limited = [one for one in drawing.wires if one.limit is not None]
    for wire in limited:
        most = wire.limit.get("max") if isinstance(wire.limit, dict) else None
        if not wire.is_control or isinstance(most, bool) or not isinstance(most, int | float):
            problem = "it has a loopLimit that cannot be used"
            findings.at_wire(wire, problem, 'Give an edge of execution {"max": 3}')
            return replace(drawing, wires=tuple(replace(one, limit=None) for one in drawing.wires))
    pins = {(one.source, one.out) for one in limited}
    nodes, wires = dict(drawing.nodes), [one for one in drawing.wires if one.limit is None]
    ways: dict[Pin, DrawnWire] = {}
    for wire in drawing.wires:
        if wire.is_control:
            ways.setdefault((wire.source, wire.out), wire)
    renamed: dict[str, dict[Pin, str]] = defaultdict(dict)
    added: dict[str, list[str]] = defaultdict(list)
    for wire in limited:
        name = f"loop-limit:{wire.source}.{wire.out}->{wire.target}"
        data = {"pinDefaults": {"max": wire.limit["max"]}}
        nodes[name] = DrawnNode(name, LIMIT, data, drawing.nodes[wire.source].place)
        wires += [
            replace(wire, target=name, into=INTO_CONTROL, limit=None),
            DrawnWire(name, "again", wire.target, wire.into, is_control=True, place=wire.place),
        ]
        renamed[wire.target][wire.source, wire.out] = name
        other = (wire.source, _OTHER.get(wire.out, ""))
        if drawing.nodes[wire.source].type == "if" and other in ways and other not in pins:
            wires.append(replace(ways[other], source=name, out="limit_reached", limit=None))
            added[ways[other].target].append(name)
    for target in {**renamed, **added}:
        nodes[target] = _with_limited_routes(nodes[target], renamed[target], added[target])
    return replace(drawing, nodes=nodes, wires=tuple(wires))


def _with_limited_routes(
    node: DrawnNode, renamed: Mapping[Pin, str], added: Sequence[str]
) -> DrawnNode:
    """Return a node whose routes come from the limits in the wires into it. The routes' keys are kept.

    Args:
        node: The node.
        renamed: By the source of a route: the limit that is in its wire now.
        added: The limits from which execution comes to the node when they are reached.
    """
    routes = node.data.get("entryRoutes")
    if isinstance(routes, list) and routes:
        told = [_renamed_route(one, renamed) if isinstance(one, dict) else one for one in routes]
        for name in added:
            more = {"sourceNodeId": name, "sourceHandle": "limit_reached"}
            told.append({"key": f"{name}::limit_reached"} | more)
        return replace(node, data={**node.data, "entryRoutes": told})
    if not renamed:
        return node
    keys = {f"{source}::{out}": f"{name}::again" for (source, out), name in renamed.items()}
    overrides = {
        pin: {keys.get(key, key): one for key, one in by_route.items()}
        for pin, by_route in node.part("inputRouteOverrides").items()
        if isinstance(by_route, dict)
    }
    return replace(node, data={**node.data, "inputRouteOverrides": overrides})


def _renamed_route(route: dict[str, Any], renamed: Mapping[Pin, str]) -> dict[str, Any]:
    source, out = (
        route.get("sourceNodeId") or route.get("source"),
        route.get("sourceHandle") or OUT_OF_CONTROL,
    )
    name = renamed.get((source, out)) if isinstance(source, str) and isinstance(out, str) else None
    if name is None:
        return route
    again = {"sourceNodeId": name, "sourceHandle": "again"}
    return {"key": f"{source}::{out}", **route} | again


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
    added: list[DrawnWire] = []
    for target, into in ways.items():
        if len(into) < 2:  # noqa: PLR2004 - a single way has no alternative
            continue
        keys = _keys_of(drawing.nodes[target], into, findings)
        overrides = _overrides_of(drawing, target, keys, findings)
        if not overrides:
            continue
        for number, (source, out) in enumerate(keys.values()):
            numbers[source, out, target] = number
        for pin, by_route in overrides.items():
            numbered = {number: by_route[key] for number, key in enumerate(keys) if key in by_route}
            added += _add_mux(nodes, (target, pin), numbered)
            muxes[target, pin] = added[-1].source
    routed = [_routed(wire, numbers, muxes) for wire in drawing.wires]
    return replace(drawing, nodes=nodes, wires=(*routed, *added))


def _routed(
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
    drawn = dict.fromkeys((one.source, one.out) for one in into)
    told = node.data.get("entryRoutes")
    keys: dict[str, Pin] = {}
    for place, one in enumerate(told if isinstance(told, list) else ()):
        source = one.get("sourceNodeId") or one.get("source") if isinstance(one, dict) else None
        if not isinstance(source, str):
            continue
        out = one.get("sourceHandle") or OUT_OF_CONTROL
        key = str(one.get("key") or f"{source}::{out}")
        if key in keys:
            problem = f"entryRoutes have the key {key!r} twice"
            findings.at_node(node, problem, "Give each a key of its own", "data", "entryRoutes")
        elif (source, out) not in drawn:
            problem = f"entryRoutes mismatch: no edge comes from {source}.{out}"
            findings.at_node(node, problem, _AGAIN, "data", "entryRoutes", place)
        keys[key] = (source, str(out))
    if not keys:
        keys = {f"{source}::{out}": (source, out) for source, out in drawn}
    for source, out in sorted({*drawn} - {*keys.values()}):
        problem = f"entryRoutes mismatch: they lack the edge from {source}.{out}"
        findings.at_node(node, problem, _AGAIN, "data", "entryRoutes")
    if len(drawn) < len(into):
        problem = "two edges of execution come from one pin"
        findings.at_node(node, problem, "Remove one")
    return keys


def _overrides_of(
    drawing: Drawing, target: str, keys: dict[str, Pin], findings: DrawingFindings
) -> dict[str, dict[str, Pin]]:
    node = drawing.nodes[target]
    found: dict[str, dict[str, Pin]] = {}
    for pin, route, source in override_references(node):
        place = ("data", "inputRouteOverrides", pin, route)
        if route not in keys:
            problem = f"the value of {pin!r} is for route {route!r}, which it does not have"
            findings.at_node(node, problem, _AGAIN, *place)
        elif source[0] not in drawing.nodes:
            problem = f"the value of {pin!r} comes from {source[0]!r}, which is no node"
            findings.at_node(node, problem, _AGAIN, *place)
        else:
            found.setdefault(pin, {})[route] = source
    return found


def _add_mux(
    nodes: dict[str, DrawnNode], pin: Pin, by_route: dict[int, Pin]
) -> Iterator[DrawnWire]:
    """Add the node that has an input for each route to a pin; yield its wires, the wire to the pin last."""
    target, name = pin
    mux = f"path_mux:{target}.{name}"
    defaults = nodes[target].part("pinDefaults")
    data: dict[str, Any] = {"target": target}
    if name in defaults:
        data["pinDefaults"] = {"fallback": defaults[name]}
    nodes[mux] = DrawnNode(mux, MUX, data)
    for number, (source, out) in by_route.items():
        yield DrawnWire(source, out, mux, f"in{number}", is_control=False)
    yield DrawnWire(mux, "out", target, name, is_control=False)
