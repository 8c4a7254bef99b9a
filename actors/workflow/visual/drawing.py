"""A drawing: nodes and wires of a VisualFlow, as the passes of the compiler hand it on."""

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
        id: Its name in the drawing.
        type: What it does, for example ``ask_user``.
        data: What the editor keeps of it.
        place: Its number in the list of nodes; None: a pass of the compiler added it.
    """

    id: str
    type: str
    data: Mapping[str, Any]
    place: int | None = None

    def pins(self, side: str) -> list[str]:
        """Return the names of the data pins of a side, ``inputs`` or ``outputs``, in their order."""
        return [name for name, kind in _pins_of(self.data, side) if kind != "execution"]

    def is_control_pin(self, side: str, name: str) -> bool:
        """Return True if the node declares this pin as one of execution."""
        return (name, "execution") in _pins_of(self.data, side)

    def part(self, name: str) -> dict[str, Any]:
        """Return an object of the data; empty if it is not there, or is something else."""
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
        out: The pin there.
        target: The node that it leads to.
        into: The pin there.
        is_control: Execution goes along it; else data does.
        place: Its number in the list of edges; None: a pass of the compiler added it.
        limit: How often execution may go along it; None: always.
        route: Its number among the ways into `target`, if the values of pins there depend on it.
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
    """A flow as it is drawn.

    Attributes:
        id: The name of the flow.
        nodes: By id, in the order of the document.
        wires: In the order of the document.
        entry: The node that it says to begin with.
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
