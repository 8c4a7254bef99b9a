"""The pass for nodes with several ways in. The way taken chooses the values of their pins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from actors.workflow.visual.drawing import (
    OUT_OF_CONTROL,
    Drawing,
    DrawingFindings,
    DrawnNode,
    DrawnWire,
)
from actors.workflow.visual.lowering import Pin, override_references

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
