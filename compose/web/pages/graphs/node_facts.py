"""Facts about nodes that can be known without calling them: what their code names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, Final

from actors.kernel.workflow.effects import Effect, EffectType
from actors.workflow.machine.policy import EffectPolicy
from actors.workflow.machine.spec import Node, WorkflowSpec

_DEADLINES: Final = ("until", "timeout_s")
_BY_NAME: Final = {one.name: one for one in EffectType} | {one.value: one for one in EffectType}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The facts that the code of a node names. It may do less, and what it makes up when it runs is not here.

    Attributes:
        name: Of the node.
        effects: The types of effects.
        forks: It has branches.
        attempts: How often the app tries its effects, at most; 0: the policy cannot say, or there is none.
        has_deadline: An effect may have one.
        goes_to: Other nodes, in their order in the graph.
        says: The first line of its documentation.
        code: Its module and name.
    """

    name: str
    effects: tuple[EffectType, ...]
    forks: bool
    attempts: int
    has_deadline: bool
    goes_to: tuple[str, ...]
    says: str
    code: str

    @property
    def kind(self) -> str:
        """Its kind in words."""
        words = [one.value.replace("_", " ") for one in self.effects]
        return ", ".join([*words, *(["branches"] if self.forks else [])]) or "step"


def facts_of(spec: WorkflowSpec, policy: EffectPolicy) -> list[NodeFacts]:
    """Return the facts of all nodes of a graph, in their order."""
    return [_facts(spec, name, node, policy) for name, node in spec.nodes.items()]


def _facts(spec: WorkflowSpec, name: str, node: Node, policy: EffectPolicy) -> NodeFacts:
    words = {*_words(node)}
    effects = tuple(one for one in EffectType if one in {_BY_NAME.get(word) for word in words})
    return NodeFacts(
        name=name,
        effects=effects,
        forks="parallel" in words,
        attempts=max((_attempts(policy, one) for one in effects), default=0),
        has_deadline=bool(effects) and not words.isdisjoint(_DEADLINES),
        goes_to=tuple(one for one in spec.nodes if one in words and one != name),
        says=(inspect.getdoc(node) or "").partition("\n")[0][:200],
        code=f"{getattr(node, '__module__', '')}.{getattr(node, '__qualname__', '')}".strip("."),
    )


def _attempts(policy: EffectPolicy, kind: EffectType) -> int:
    try:
        return int(policy.max_attempts(Effect(kind)))
    except Exception:  # noqa: BLE001 - of an author's class, which may want more of an effect
        return 0


def _words(node: Any) -> Iterator[str]:
    """Yield texts and names in the code of a node, in what it was made with, and in what it refers to."""
    if isinstance(node, partial):
        yield from _texts([*node.args, *node.keywords.values()])
        node = node.func
    function: Any = inspect.unwrap(node)
    if inspect.ismethod(function):
        function = function.__func__
    elif not inspect.isfunction(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - its code, not whether
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
        texts = texts[1:]  # its documentation, if it has one
    yield from _texts(texts)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _code_words(one, known)


def _texts(values: Any) -> Iterator[str]:
    """Yield the texts among values, and within tuples and small objects of them."""
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
    except ValueError:  # not yet
        return False
