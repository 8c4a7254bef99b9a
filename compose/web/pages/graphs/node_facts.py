"""Facts about nodes without calling them: declarations of a document, or names in their code."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import CodeType
from typing import Any, Final

from actors.kernel.workflow.effects import Effect, EffectType
from actors.workflow.documents.nodes import DocumentNode
from actors.workflow.machine.spec import EffectPolicy, Node, WorkflowSpec

_DEADLINES: Final = ("until", "timeout_s")
_BY_NAME: Final = {one.name: one for one in EffectType} | {one.value: one for one in EffectType}


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
        _declared(spec, node, policy)
        if isinstance(node, DocumentNode)
        else _named(spec, name, node, policy)
        for name, node in spec.nodes.items()
    ]


def _declared(spec: WorkflowSpec, node: DocumentNode, policy: EffectPolicy) -> NodeFacts:
    data = json.loads(node.source)
    told = data if isinstance(data, dict) else {}
    effect, seconds = _BY_NAME.get(str(told.get("effect"))), told.get("deadline")
    return NodeFacts(
        name=node.name,
        kind=node.kind if effect is None else _in_words([effect]),
        attempts=told.get("retry") or (0 if effect is None else _attempts(policy, effect)),
        deadline="" if seconds is None else str(timedelta(seconds=seconds)),
        ways=tuple((word, to) for word, to in node.targets if to in spec.nodes),
        says=(node.title or "")[:200],
        code="",
    )


def _named(spec: WorkflowSpec, name: str, node: Node, policy: EffectPolicy) -> NodeFacts:
    words = {*_words(node)}
    found = {_BY_NAME.get(word) for word in words}
    effects = [one for one in EffectType if one in found]
    kinds = [_in_words(effects)] if effects else []
    return NodeFacts(
        name=name,
        kind=", ".join([*kinds, *(["branches"] if "parallel" in words else [])]) or "step",
        attempts=max((_attempts(policy, one) for one in effects), default=0),
        deadline="named" if effects and not words.isdisjoint(_DEADLINES) else "",
        ways=tuple(("", one) for one in spec.nodes if one in words and one != name),
        says=(inspect.getdoc(node) or "").partition("\n")[0][:200],
        code=f"{getattr(node, '__module__', '')}.{getattr(node, '__qualname__', '')}".strip("."),
    )


def _in_words(effects: Iterable[EffectType]) -> str:
    return ", ".join(one.value.replace("_", " ") for one in effects)


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
    cells = [one.cell_contents for one in function.__closure__ or () if _is_filled(one)]
    yield from _texts([*cells, *(function.__defaults__ or ())])
    yield from _texts((function.__kwdefaults__ or {}).values())


def _code_words(code: CodeType, known: dict[str, Any]) -> Iterator[str]:
    yield from code.co_names
    yield from _texts(known.get(name) for name in code.co_names)
    texts = code.co_consts
    if texts and isinstance(texts[0], str):
        texts = texts[1:]  # the docstring, if there is one
    yield from _texts(texts)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _code_words(one, known)


def _texts(values: Any) -> Iterator[str]:
    """Yield the texts among values, and those in dicts, tuples and frozensets among them."""
    for one in values:
        if isinstance(one, str):
            yield str(one)
        elif isinstance(one, dict):
            yield from (text for pair in one.items() for text in pair if isinstance(text, str))
        elif isinstance(one, tuple | frozenset):
            yield from (text for text in one if isinstance(text, str))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # the cell is not filled yet
        return False
