"""An exact model of graphs: a recursive interpreter over the tree that a graph was made of.

It has no machine, no deltas and no stores: a program is a list of statements, each a tuple of its kind and its
words, and is interpreted at once, on a clock that only counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ATTEMPTS = 3
"""Of an effect."""


class Ended(Exception):  # noqa: N818 - a way out, not a mistake
    """The program ended early."""


class Failed(Exception):  # noqa: N818 - a way out, not a mistake
    """The program failed."""


@dataclass
class Expected:
    """What a run of a program comes to.

    Attributes:
        name: The graph.
        status: At the end.
        output: Of a completed one: its public vars.
        records: Node, status and attempt of each record, in order.
        executions: Node and attempt of each call of a handler, in order.
        children: Of the runs that it starts, in order.
        heard: The nodes that emitted an event for which somebody waits.
    """

    name: str
    status: str = "completed"
    output: Any = None
    records: list[tuple[str, str, int]] = field(default_factory=list)
    executions: list[tuple[str, int]] = field(default_factory=list)
    children: list[Expected] = field(default_factory=list)
    heard: set[str] = field(default_factory=set)


def expected(name: str, program: list[Any], given: dict[str, Any]) -> Expected:
    """Return what a run comes to that begins with these vars."""
    run = Expected(name)
    variables: dict[str, Any] = {"a": 0, "b": 1, "r": {}} | given
    entry = f"{name}.0" if program else "end"
    run.records.append((entry, "completed", 1))
    last = "end"
    try:
        _block(run, program, name, variables)
        run.records.append(("end", "completed", 1))
    except Ended as way:
        last = way.args[0]
        run.records.append((last, "completed", 1))
    except Failed as way:
        last, run.status = way.args[0], "failed"
    if run.status == "completed":
        run.output = variables
    run.records.append((last, "completed", 1))
    return run


def _block(run: Expected, block: list[Any], path: str, variables: dict[str, Any]) -> None:
    for place, statement in enumerate(block):
        _statement(run, statement, f"{path}.{place}", variables)


def _statement(run: Expected, statement: Any, node: str, variables: dict[str, Any]) -> None:
    kind, *words = statement
    if kind == "add":
        name, amount = words
        variables[name] += amount
        run.records.append((node, "completed", 1))
    elif kind == "loop":
        for _ in range(words[0]):
            run.records.append((node, "completed", 1))
            _block(run, words[1], f"{node}.body", variables)
        run.records.append((node, "completed", 1))
    elif kind == "switch":
        name, ways = words
        run.records.append((node, "completed", 1))
        way = variables[name] % len(ways)
        _block(run, ways[way], f"{node}.{way}w", variables)
    elif kind == "end":
        raise Ended(node)
    elif kind == "raise":
        run.records.append((node, "failed", 1))
        raise Failed(node)
    else:
        found = _effect(run, words, kind=kind, node=node, variables=variables)
        variables["r"] = variables["r"] | {_short(node): found}


def _effect(
    run: Expected, words: list[Any], *, kind: str, node: str, variables: dict[str, Any]
) -> Any:
    run.records.append((node, "started", 1))
    if kind == "work":
        return _work(run, node, words)
    if kind == "wait":
        run.records += [(node, "waiting", 1), (node, "completed", 1)]
        return words[-1]
    run.records.append((node, "completed", 1))
    if kind == "emit":
        run.heard |= {node} if words[0] else set()
        return "emit"
    program, is_async = words
    name = f"{node}s"
    child = expected(name, program, {"a": variables["a"]})
    run.children.append(child)
    if is_async:
        return "async"
    if waits(child):
        run.records[-1] = (node, "waiting", 1)
        run.records.append((node, "completed", 1))
    if child.status != "completed":
        run.records[-1] = (node, "failed", 1)
        raise Failed(node)
    return child.output


def _work(run: Expected, node: str, words: list[Any]) -> Any:
    fails, value, once = words
    for attempt in range(1, ATTEMPTS + 1):
        run.executions.append((node, attempt))
        if attempt > 1:
            run.records.append((node, "started", attempt))
        if attempt > fails:
            run.records.append((node, "completed", attempt))
            return value
        run.records.append((node, "failed", attempt))
        if once:
            break
    raise Failed(node)


def waits(run: Expected) -> bool:
    """Return whether a run waits at all, so that its parent does."""
    return any(status == "waiting" for _, status, _ in run.records)


def _short(node: str) -> str:
    return node.replace(".", "_")
