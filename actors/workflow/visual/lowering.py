"""The passes that remove reroutes and limits of wires from a drawing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from actors.workflow.visual.drawing import (
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
    sources = _sources_of(reroutes, drawing, findings)
    wires = []
    for wire in drawing.wires:
        if wire.target in reroutes:
            continue
        source = (wire.source, wire.out)
        if wire.source in reroutes:
            found = _first(source, sources, reroutes)
            if found is None:
                continue
            source = found
        wires.append(replace(wire, source=source[0], out=source[1]))
    nodes = {
        name: _with_references(node, lambda pin: _first(pin, sources, reroutes))
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
    for name in sorted(reroutes):
        seen, at = {name}, name
        while at in sources and sources[at][0] in reroutes:
            at = sources[at][0]
            if at in seen:
                problem = "reroutes lead round in a circle"
                findings.at_node(drawing.nodes[name], problem, "Connect one to a source")
                sources.pop(at)
                break
            seen.add(at)
    return sources


def _first(pin: Pin, sources: dict[str, Pin], reroutes: set[str]) -> Pin | None:
    """Return the first pin against the direction of the wires that is not a reroute's. None: there is none."""
    while pin[0] in reroutes:
        if pin[0] not in sources:
            return None
        pin = sources[pin[0]]
    return pin


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
    for wire in limited:
        name = f"loop-limit:{wire.source}.{wire.out}->{wire.target}"
        data = {"pinDefaults": {"max": wire.limit["max"]}}
        nodes[name] = DrawnNode(name, LIMIT, data, drawing.nodes[wire.source].place)
        wires += [
            replace(wire, target=name, into=INTO_CONTROL, limit=None),
            DrawnWire(name, "again", wire.target, wire.into, is_control=True, place=wire.place),
        ]
        _rename_route(nodes, wire, name)
        other = (wire.source, _OTHER.get(wire.out, ""))
        if drawing.nodes[wire.source].type == "if" and other not in pins:
            wires += _ways_on(nodes, drawing, other, name)
    return replace(drawing, nodes=nodes, wires=tuple(wires))


def _rename_route(nodes: dict[str, DrawnNode], wire: DrawnWire, name: str) -> None:
    """Set the source of a wire's route into its target to the node added into the wire.

    The route's key is kept.
    """
    node = nodes[wire.target]
    routes = node.data.get("entryRoutes")
    if isinstance(routes, list) and routes:
        told = [
            {"key": f"{wire.source}::{wire.out}", **one}
            | {"sourceNodeId": name, "sourceHandle": "again"}
            if isinstance(one, dict)
            and (one.get("sourceNodeId") or one.get("source")) == wire.source
            and (one.get("sourceHandle") or OUT_OF_CONTROL) == wire.out
            else one
            for one in routes
        ]
        nodes[wire.target] = replace(node, data={**node.data, "entryRoutes": told})
        return
    old, new = f"{wire.source}::{wire.out}", f"{name}::again"
    overrides = {
        pin: {new if key == old else key: one for key, one in by_route.items()}
        for pin, by_route in node.part("inputRouteOverrides").items()
        if isinstance(by_route, dict)
    }
    nodes[wire.target] = replace(node, data={**node.data, "inputRouteOverrides": overrides})


def _ways_on(
    nodes: dict[str, DrawnNode], drawing: Drawing, pin: Pin, name: str
) -> Iterator[DrawnWire]:
    """Yield the wire from a limit to the target of another pin, and add it to the routes of the target."""
    for wire in drawing.wires:
        if wire.is_control and (wire.source, wire.out) == pin:
            node = nodes[wire.target]
            routes = node.data.get("entryRoutes")
            if isinstance(routes, list) and routes:
                more = {"sourceNodeId": name, "sourceHandle": "limit_reached"}
                told = [*routes, {"key": f"{name}::limit_reached"} | more]
                nodes[wire.target] = replace(node, data={**node.data, "entryRoutes": told})
            yield replace(wire, source=name, out="limit_reached", limit=None)
            return
