"""Drawing of a graph: a layout that depends on the graph only, and SVG with a run's states as classes.

The facts about nodes are read without calling them: from declarations of a document, or names in their code.
"""

from __future__ import annotations

import inspect
import json
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from markupsafe import Markup

from actors._kernel.workflow.effects import Effect, EffectType
from actors._workflow.documents.nodes import DocumentNode
from actors._workflow.machine.spec import EffectPolicy, Node, WorkflowSpec
from compose._web.pages.html import FOLDER

if TYPE_CHECKING:
    import graphlay

Edge: TypeAlias = tuple[str, str]

MAX_NODES: Final = 1_000
MAX_EDGES: Final = 3_000
MAX_BENDS: Final = 2_000
"""A larger or denser graph is not drawn, because its layout would take more than a second."""
_SMALL: Final = 100
_COLUMN: Final = 24
"""A graph with more nodes than this is wrapped into several columns, if it would be one column."""
_LABEL: Final = 26
_HEIGHT: Final = 46
_NARROW: Final = 104
_PAD: Final = 16
_AROUND: Final = 60
"""Horizontal distance of the bulge of a line that leads back."""
_DEADLINES: Final = ("until", "timeout_s")
_BY_NAME: Final = {t.name: t for t in EffectType} | {t.value: t for t in EffectType}


@dataclass(frozen=True, slots=True)
class Box:
    """A node's box: its center, and its width."""

    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """The positions of nodes and lines.

    Attributes:
        boxes: The box of each node, by the node's name.
        lines: The points of each edge.
        bounds: Left, top, width and height.
    """

    boxes: Mapping[str, Box]
    lines: Mapping[Edge, Sequence[tuple[float, float]]]
    bounds: tuple[float, float, float, float]

    @property
    def is_large(self) -> bool:
        """True if the drawing has to be scaled down to be seen as a whole."""
        return self.bounds[2] > 900 or self.bounds[3] > 2_000  # noqa: PLR2004 - pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMarks:
    """The marks of a run on the drawing of its graph.

    Attributes:
        classes: The state of each node, as its class.
        notes: The text below each node's name.
        taken_edges: Edges that the run has taken.
        unnamed_edges: Edges that the run has taken, but that no code names.
        links: The address of the run that a node has started last, by the node's name;
            None if no node is a link.
    """

    classes: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    taken_edges: Collection[Edge] = ()
    unnamed_edges: Collection[Edge] = ()
    links: Mapping[str, str] | None = None


def layout_of(nodes: Sequence[str], edges: Sequence[Edge]) -> GraphLayout | None:
    """Return the layout of a graph. The same graph always has the same layout.

    Return None if the package graphlay is not installed, or the graph is too large or too dense.
    """
    if not nodes:
        return None
    widths_by_name = {name: max(_NARROW, 24 + 7.6 * _columns(shown_name(name))) for name in nodes}
    engine_layout = _engine(widths_by_name, edges)
    if engine_layout is None:
        return None
    centers = [(node["center"]["x"], node["center"]["y"]) for node in engine_layout.nodes]
    boxes = {
        name: Box(round(x, 1), round(y, 1), round(widths_by_name[name], 1))
        for name, (x, y) in zip(nodes, centers, strict=True)
    }
    lines = {
        edge: [(round(point["x"], 1), round(point["y"], 1)) for point in line["points"]]
        for edge, line in zip(edges, engine_layout.edges, strict=True)
    }
    low, high = engine_layout.bounds["min"], engine_layout.bounds["max"]
    bounds = (low["x"], low["y"], high["x"] - low["x"], high["y"] - low["y"])
    return GraphLayout(boxes, lines, bounds)


def _engine(widths_by_name: Mapping[str, float], edges: Sequence[Edge]) -> graphlay.Layout | None:
    """Return the engine's layout; None if it is not installed, or the graph is beyond its limits."""
    try:
        import graphlay  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return None
    graph = graphlay.Graph()
    for name, width in widths_by_name.items():
        graph.node(name, width=width, height=_HEIGHT)
    for source, target in edges:
        graph.edge(source, target)
    placement = "network_simplex" if len(widths_by_name) <= _SMALL else "brandes_koepf"
    options = {
        "direction": "topbottom",
        "effort": "fast",
        "coords": {"placement": placement},
        "spacing": {"layer_gap": 46.0, "node_gap": 30.0},
        "wrap": {"viewport_aspect": 1.4 if len(widths_by_name) > _COLUMN else 0.0},
        "tuning": {"wrap": {"max_rows": 30}},
        "limits": {"max_nodes": MAX_NODES, "max_edges": MAX_EDGES, "max_dummies": MAX_BENDS},
    }
    try:
        return graphlay.layout(graph, options=options)
    except graphlay.GraphlayError:
        return None


def svg_of(layout: GraphLayout, marks: GraphMarks, *, title: str) -> Markup:
    """Return the drawing. Marks change classes and texts, and add dashed lines, but move nothing."""
    left, top, width, height = layout.bounds
    width, height = width + 2 * _PAD + _AROUND, height + 2 * _PAD
    box = f"{left - _PAD:.0f} {top - _PAD:.0f} {width:.0f} {height:.0f}"
    numbers = {name: n for n, name in enumerate(layout.boxes)}
    lines = Markup("").join(
        _line(
            f"e-{numbers[a]}-{numbers[b]}", "taken" if (a, b) in marks.taken_edges else "", points
        )
        for (a, b), points in layout.lines.items()
    )
    unnamed_lines = Markup("").join(
        Markup('<path class="edge seen" d="{}"/>').format(_curve(layout.boxes[a], layout.boxes[b]))
        for a, b in marks.unnamed_edges
        if a in layout.boxes and b in layout.boxes
    )
    nodes = Markup("").join(
        _node(n, name, layout.boxes[name], marks) for name, n in numbers.items()
    )
    role = "img" if marks.links is None else "group"  # an image has no links
    return Markup(
        '<svg class="graph" id="graph" viewBox="{}" width="{:.0f}" height="{:.0f}" role="{}" '
        'aria-label="{}"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" '
        'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
        '{}<g id="seen">{}</g>{}</svg>'
    ).format(box, width, height, role, title, lines, unnamed_lines, nodes)


def standalone(drawing: Markup) -> str:
    """Return a drawing as an SVG file of its own, with the page's light and dark colours."""
    style = (FOLDER / "page.css").read_text("utf-8")
    colours = style[: style.index("* {")]
    rules = "\n".join(line for line in style.splitlines() if line.startswith(".graph "))
    head = f'<svg xmlns="http://www.w3.org/2000/svg"><style>{colours}{rules}</style>'
    opening, _, rest = str(drawing).partition(">")
    attributes = opening.removeprefix("<svg")
    return head.replace("<svg", f"<svg{attributes}", 1) + rest + "\n"


def _line(id_: str, class_: str, points: Sequence[tuple[float, float]]) -> Markup:
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
    return Markup('<path id="{}" class="{}" d="{}"/>').format(id_, f"edge {class_}".strip(), path)


def _node(n: int, name: str, box: Box, marks: GraphMarks) -> Markup:
    class_ = f"node {marks.classes.get(name, '')}".strip()
    opening, closing = Markup(""), Markup("")
    if marks.links is not None:
        # Each node has the element, so that a page that changes only sets its address.
        href = Markup(' href="{}"').format(marks.links[name]) if name in marks.links else ""
        opening, closing = Markup("<a data-inside{}>").format(href), Markup("</a>")
    return Markup(
        '<g id="n-{}" class="{}">{}<title>{}</title><rect x="{:g}" y="{:g}" width="{:g}" height="{}" rx="7"/>'
        '<text x="{:g}" y="{:g}" class="name">{}</text><text x="{:g}" y="{:g}" class="note">{}</text>{}</g>'
    ).format(
        *(
            n,
            class_,
            opening,
            name,
            round(box.x - box.width / 2, 1),
            box.y - _HEIGHT / 2,
            box.width,
            _HEIGHT,
        ),
        *(box.x, box.y - 4, shown_name(name), box.x, box.y + 13),
        shorten(marks.notes.get(name, ""), int(box.width / 6.4)),
        closing,
    )


def _curve(a: Box, b: Box) -> str:
    """Return a curve from one node to another, or to itself. It may cross nodes between them."""
    half = _HEIGHT / 2
    if b.y > a.y + _HEIGHT:
        bend = (b.y - a.y - _HEIGHT) / 2
        low, high = a.y + half, b.y - half
        return f"M{a.x:g} {low:g}C{a.x:g} {low + bend:g} {b.x:g} {high - bend:g} {b.x:g} {high:g}"
    out, back = a.x + a.width / 2, b.x + b.width / 2
    around, gap = max(out, back) + _AROUND - _PAD, 9 if a is b else 0
    return (
        f"M{out:g} {a.y - gap:g}C{around:g} {a.y - gap:g} {around:g} {b.y + gap:g} "
        f"{back:g} {b.y + gap:g}"
    )


def shown_name(name: str) -> str:
    """Return the name of a node, shortened to fit its box."""
    return shorten(name, _LABEL)


def shorten(text: str, limit: int) -> str:
    """Return a text, shortened to at most this many columns."""
    if _columns(text) <= limit:
        return text
    head, columns = "", 0
    for character in text:
        columns += _columns(character)
        if columns >= limit:
            break
        head += character
    return f"{head}…"


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The facts about a node.

    For a node of code they are estimates: code need not use all that it names, and may compute other names.

    Attributes:
        name: The node's name.
        kind: The node's effects, or its kind, in words.
        attempts: Maximum number of attempts for its effect; 0 if there is no effect, or the policy cannot tell.
        deadline: The document's deadline, or ``named`` if the code names one; empty if there is none.
        ways: Moves to other nodes: words of the move, and the node. Moves of a node of code have no words.
        says: The first line of the node's documentation, or its title.
        code: Module and name of its code; empty for a node of a document.
    """

    name: str
    kind: str
    attempts: int
    deadline: str
    ways: tuple[tuple[str, str], ...]
    says: str
    code: str

    @property
    def goes_to(self) -> tuple[str, ...]:
        """The nodes that moves lead to, without duplicates."""
        return tuple(dict.fromkeys(to for _, to in self.ways))


def facts_of(spec: WorkflowSpec, policy: EffectPolicy) -> list[NodeFacts]:
    """Return the facts of all nodes of a graph, in the graph's order."""
    return [
        _facts_of_document_node(spec, node, policy)
        if isinstance(node, DocumentNode)
        else _facts_of_code_node(spec, name, node, policy)
        for name, node in spec.nodes.items()
    ]


def _facts_of_document_node(
    spec: WorkflowSpec, node: DocumentNode, policy: EffectPolicy
) -> NodeFacts:
    data = json.loads(node.source)
    declaration = data if isinstance(data, dict) else {}
    effect, seconds = _BY_NAME.get(str(declaration.get("effect"))), declaration.get("deadline")
    return NodeFacts(
        name=node.name,
        kind=node.kind if effect is None else _in_words([effect]),
        attempts=declaration.get("retry") or (0 if effect is None else _attempts(policy, effect)),
        deadline="" if seconds is None else str(timedelta(seconds=seconds)),
        ways=tuple((word, to) for word, to in node.targets if to in spec.nodes),
        says=(node.title or "")[:200],
        code="",
    )


def _facts_of_code_node(
    spec: WorkflowSpec, name: str, node: Node, policy: EffectPolicy
) -> NodeFacts:
    words = {*_words(node)}
    named_effects = {_BY_NAME.get(word) for word in words}
    effects = [effect for effect in EffectType if effect in named_effects]
    kinds = [_in_words(effects)] if effects else []
    return NodeFacts(
        name=name,
        kind=", ".join([*kinds, *(["branches"] if "parallel" in words else [])]) or "step",
        attempts=max((_attempts(policy, effect) for effect in effects), default=0),
        deadline="named" if effects and not words.isdisjoint(_DEADLINES) else "",
        ways=tuple(("", other) for other in spec.nodes if other in words and other != name),
        says=(inspect.getdoc(node) or "").partition("\n")[0][:200],
        code=f"{getattr(node, '__module__', '')}.{getattr(node, '__qualname__', '')}".strip("."),
    )


def _in_words(effects: Iterable[EffectType]) -> str:
    return ", ".join(effect.value.replace("_", " ") for effect in effects)


def _attempts(policy: EffectPolicy, kind: EffectType) -> int:
    try:
        return int(policy.max_attempts(Effect(kind)))
    except Exception:  # noqa: BLE001 - an author's class, which may need more fields of an effect
        return 0


def _words(node: Any) -> Iterator[str]:
    """Yield texts and names from the code of a node, its closure and defaults, and the globals it refers to."""
    if isinstance(node, partial):
        yield from _texts([*node.args, *node.keywords.values()])
        node = node.func
    function: Any = inspect.unwrap(node)
    if inspect.ismethod(function):
        function = function.__func__
    elif not inspect.isfunction(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - its code is needed
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return
    yield from _code_words(code, getattr(function, "__globals__", {}))
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    yield from _texts([*cells, *(function.__defaults__ or ())])
    yield from _texts((function.__kwdefaults__ or {}).values())


def _code_words(code: CodeType, module_globals: dict[str, Any]) -> Iterator[str]:
    yield from code.co_names
    yield from _texts(module_globals.get(name) for name in code.co_names)
    texts = code.co_consts
    if texts and isinstance(texts[0], str):
        texts = texts[1:]  # the docstring, if there is one
    yield from _texts(texts)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_words(constant, module_globals)


def _texts(values: Any) -> Iterator[str]:
    """Yield the texts among values, and those in dicts, tuples and frozensets among them."""
    for value in values:
        if isinstance(value, str):
            yield str(value)
        elif isinstance(value, dict):
            yield from (text for pair in value.items() for text in pair if isinstance(text, str))
        elif isinstance(value, tuple | frozenset):
            yield from (text for text in value if isinstance(text, str))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # the cell is not filled yet
        return False
