"""A drawing: the nodes and wires of a VisualFlow, which the passes of the compiler change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from actors.workflow.documents.findings import FindingList

INTO_CONTROL: Final = "exec-in"
OUT_OF_CONTROL: Final = "exec-out"


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node.

    Attributes:
        id: The node's name in the drawing.
        type: The node's type, for example ``ask_user``.
        data: The node's data in the editor's JSON.
        place: The node's number in the list of nodes. None: a pass of the compiler added it.
    """

    id: str
    type: str
    data: Mapping[str, Any]
    place: int | None = None

    def pins(self, side: str) -> list[str]:
        """Return the names of the data pins of a side, in their order.

        The side is ``inputs`` or ``outputs``.
        """
        return [name for name, kind in _pins_of(self.data, side) if kind != "execution"]

    def control_pins(self, side: str) -> frozenset[str]:
        """Return the pins of a side that the node declares as pins of execution."""
        return frozenset(name for name, kind in _pins_of(self.data, side) if kind == "execution")

    def part(self, name: str) -> dict[str, Any]:
        """Return an object in the data. Empty: it is missing, or is not an object."""
        found = self.data.get(name)
        return dict(found) if isinstance(found, dict) else {}


def _pins_of(data: Mapping[str, Any], side: str) -> list[tuple[str, str]]:
    pins = data.get(side)
    return [
        (one["id"], str(one.get("type") or ""))
        for one in (pins if isinstance(pins, list) else ())
        if isinstance(one, dict) and isinstance(one.get("id"), str) and one["id"]
    ]


@dataclass(frozen=True, slots=True)
class DrawnWire:
    """A wire from an output pin to an input pin.

    Attributes:
        source: The node that it comes from.
        out: The output pin of the source.
        target: The node that it leads to.
        into: The input pin of the target.
        is_control: True if the wire carries execution, False if it carries data.
        place: The wire's number in the list of edges. None: a pass of the compiler added it.
        limit: The editor's limit of how often execution may take the wire. None: no limit.
        route: The wire's number among the ways into `target`, if values of pins there depend on it.
    """

    source: str
    out: str
    target: str
    into: str
    is_control: bool
    place: int | None = None
    limit: Any = None
    route: int | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn flow.

    Attributes:
        id: The name of the flow.
        nodes: The nodes by id, in the order of the document.
        wires: The wires, in the order of the document.
        entry: The entry node that the flow names. None: it names none.
    """

    id: str
    nodes: Mapping[str, DrawnNode]
    wires: tuple[DrawnWire, ...]
    entry: str | None = None


class DrawingFindings(FindingList):
    """The findings of a drawing so far."""

    def at_node(self, node: DrawnNode, problem: str, remedy: str, *place: str | int) -> None:
        """Add a mistake in a node."""
        where = () if node.place is None else ("nodes", node.place)
        self.add(f"node {node.id!r}: {problem}", remedy, *where, *place)

    def at_wire(self, wire: DrawnWire, problem: str, remedy: str) -> None:
        """Add a mistake of a wire."""
        where = () if wire.place is None else ("edges", wire.place)
        name = f"{wire.source}.{wire.out} -> {wire.target}.{wire.into}"
        self.add(f"edge {name}: {problem}", remedy, *where)
