"""An exact model of graphs: a recursive interpreter over the tree from which a graph was made.

It has no machine, no deltas and no stores: a program is a list of statements, each a tuple of its
kind and its words, and is interpreted at once, on a clock that only counts.
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
    """The predicted outcome of a program.

    Attributes: name: The graph. status: At the end. output: Of a completed one: its public vars.
    records: By branch: node, status and attempt of each record, in order. branch: The names of its
    current branches. executions: Node and attempt of each call of a handler, in order. children: Of
    the runs that it starts, in order. emitters: The nodes that emitted an event with a listener.
    is_actor: Whether the actor driver runs it: that driver always waits for the end of a sub-graph.
    """

    name: str
    status: str = "completed"
    output: Any = None
    records: dict[tuple[str, ...], list[tuple[str, str, int]]] = field(default_factory=dict)
    branch: tuple[str, ...] = ()
    executions: list[tuple[str, int]] = field(default_factory=list)
    children: list[Expected] = field(default_factory=list)
    emitters: set[str] = field(default_factory=set)
    is_actor: bool = False

    def tell(self, node: str, status: str, attempt: int = 1) -> None:
        """Add a record to the current branch."""
        self.records.setdefault(self.branch, []).append((node, status, attempt))

    def correct(self, node: str, status: str) -> None:
        """Replace the last record."""
        self.records[self.branch][-1] = (node, status, 1)


def expected(
    name: str, program: list[Any], run_vars: dict[str, Any], *, is_actor: bool = False
) -> Expected:
    """Return the predicted outcome of a run that starts with these vars."""
    run = Expected(name, is_actor=is_actor)
    variables: dict[str, Any] = {"a": 0, "b": 1, "r": {}} | run_vars
    entry = f"{name}.0" if program else "end"
    run.tell(entry, "completed")
    last = "end"
    try:
        _block(run, program, name, variables)
        run.tell("end", "completed")
    except Ended as way:
        last = way.args[0]
        run.tell(last, "completed")
    except Failed as way:
        last, run.status = way.args[0], "failed"
    if run.status == "completed":
        run.output = variables
    run.tell(last, "completed")
    return run


def _block(run: Expected, block: list[Any], path: str, variables: dict[str, Any]) -> None:
    for index, statement in enumerate(block):
        _statement(run, statement, f"{path}.{index}", variables)


def _statement(run: Expected, statement: Any, node: str, variables: dict[str, Any]) -> None:
    kind, *words = statement
    if kind == "add":
        name, amount = words
        variables[name] += amount
        run.tell(node, "completed")
    elif kind == "loop":
        for _ in range(words[0]):
            run.tell(node, "completed")
            _block(run, words[1], f"{node}.body", variables)
        run.tell(node, "completed")
    elif kind == "switch":
        name, ways = words
        run.tell(node, "completed")
        way = variables[name] % len(ways)
        _block(run, ways[way], f"{node}.{way}s", variables)
    elif kind == "par":
        run.tell(node, "completed")
        _parallel(run, words[0], node, variables)
    elif kind == "end":
        raise Ended(node)
    elif kind == "raise":
        run.tell(node, "failed")
        raise Failed(node)
    else:
        effect_value = _effect(run, words, kind=kind, node=node, variables=variables)
        variables["r"] = variables["r"] | {_short(node): effect_value}


def _parallel(run: Expected, blocks: list[Any], node: str, variables: dict[str, Any]) -> None:
    """Interpret branches one after the other, each with its own vars, and merge these."""
    around, failed, ways = run.branch, False, []
    for index, block in enumerate(blocks):
        own = variables | {"r": {**variables["r"]}}
        ways.append(own)
        run.branch = (*around, str(index))
        try:
            _block(run, block, f"{node}.{index}p", own)
        except Ended as way:
            run.tell(way.args[0], "completed")
        except Failed:
            failed = True
    run.branch = around
    writers = [w for w in ways if w["b"] != variables["b"]]
    if failed or len(writers) > 1:
        run.tell(node, "failed")
        raise Failed(node)
    run.tell(node, "completed")
    variables["a"] += sum(w["a"] - variables["a"] for w in ways)
    variables["b"] = writers[0]["b"] if writers else variables["b"]
    before = variables["r"]
    for branch_vars in ways:
        own = {
            key: value for key, value in branch_vars["r"].items() if before.get(key) is not value
        }
        variables["r"] = variables["r"] | own


def _effect(
    run: Expected, words: list[Any], *, kind: str, node: str, variables: dict[str, Any]
) -> Any:
    run.tell(node, "started")
    if kind == "work":
        return _work(run, node, words)
    if kind == "wait":
        run.tell(node, "waiting")
        run.tell(node, "completed")
        return words[-1]
    run.tell(node, "completed")
    if kind == "emit":
        run.emitters |= {node} if words[0] else set()
        return "emit"
    program, is_async = words
    name = f"{node}s"
    child = expected(name, program, {"a": variables["a"]}, is_actor=run.is_actor)
    run.children.append(child)
    if is_async:
        return "async"
    if run.is_actor or waits(child):
        run.correct(node, "waiting")
        run.tell(node, "completed")
    if child.status != "completed":
        run.correct(node, "failed")
        raise Failed(node)
    return child.output


def _work(run: Expected, node: str, words: list[Any]) -> Any:
    fails, value, once = words
    for attempt in range(1, ATTEMPTS + 1):
        run.executions.append((node, attempt))
        if attempt > 1:
            run.tell(node, "started", attempt)
        if attempt > fails:
            run.tell(node, "completed", attempt)
            return value
        run.tell(node, "failed", attempt)
        if once:
            break
    raise Failed(node)


def waits(run: Expected) -> bool:
    """Return whether a run waits at all, in which case its parent does."""
    return any(status == "waiting" for steps in run.records.values() for _, status, _ in steps)


def _short(node: str) -> str:
    return node.replace(".", "_")
