"""The compiler. It makes a graph of a flow document, or a list of all mistakes in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from actors._kernel.workflow.effects import EffectType
from actors._workflow.documents import sandbox
from actors._workflow.documents.document import (
    REDUCERS,
    TIMEOUT_MARK,
    AnyNode,
    CodeNode,
    EachNode,
    EffectNode,
    EndNode,
    FlowDocument,
    FlowNode,
    ForkNode,
    LoopNode,
    SwitchNode,
)
from actors._workflow.documents.expressions import Expression, ExpressionError, ParsingBudget, parse
from actors._workflow.documents.findings import FindingList, FlowFinding
from actors._workflow.documents.nodes import (
    DEADLINES,
    TEMPLATED,
    DocumentNode,
    Step,
    fork_step,
    switch_step,
    timeout_step,
)
from actors._workflow.documents.templates import DataPath, Template, template
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.machine.variables import RUNTIME, TEMP

_NEEDS: Final[dict[EffectType, tuple[str, ...]]] = {
    EffectType.ASK_USER: ("prompt",),
    EffectType.ANSWER_USER: ("message",),
    EffectType.WAIT_EVENT: ("name", "wait_key"),
    EffectType.WAIT_UNTIL: ("until", "timeout_s"),
    EffectType.EMIT_EVENT: ("name",),
    EffectType.TOOL_CALLS: ("tool_calls",),
}
"""By effect: names in its `with`, of which at least one is needed."""
_OR_ADD: Final = "Add it, or name another one"


def compile_document(
    document: FlowDocument, file: str = "flow"
) -> tuple[WorkflowSpec, list[FlowFinding]]:
    """Return the graph of a document and the warnings about the document.

    Args:
        document: The document.
        file: The document's name in findings.

    Raises:
        FlowError: The document has mistakes; the error has all of them.
    """
    compiler = _Compiler(document, FindingList(file))
    nodes = {name: compiler.node(name, node) for name, node in document.nodes.items()}
    for name, node in document.nodes.items():
        if isinstance(node, EffectNode) and node.on_timeout is not None:
            test = name + TIMEOUT_MARK
            targets = (("", node.next), ("timeout", node.on_timeout))
            source = json.dumps([node.into, *targets])
            step = timeout_step(name, node)
            nodes[test] = DocumentNode(test, "timeout", source, targets, step)
    compiler.check_ways()
    warnings = compiler.findings.warnings()
    reducers = {path: REDUCERS[name] for path, name in document.reducers.items()}
    return WorkflowSpec(document.name, document.start, nodes, reducers), warnings


@dataclass(slots=True)
class _Compiler:
    document: FlowDocument
    findings: FindingList
    budget: ParsingBudget = field(default_factory=ParsingBudget)

    def node(self, name: str, node: AnyNode) -> DocumentNode:
        """Return a node in the form in which a graph calls it."""
        step, is_code = self._step(name, node)
        data = node.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"title"})
        source = json.dumps(data, sort_keys=True, ensure_ascii=False)
        if isinstance(node, EffectNode) and node.on_timeout is not None:
            targets: tuple[tuple[str, str], ...] = (("", name + TIMEOUT_MARK),)
        else:
            targets = tuple((label, to) for label, to, _ in ways_of(node))
        effect = EffectType(node.effect) if isinstance(node, EffectNode) else None
        return DocumentNode(name, node.kind, source, targets, step, node.title, effect, is_code)

    def _step(self, name: str, node: AnyNode) -> tuple[Step, bool]:
        """Return the node's decision; True if it evaluates code."""
        if isinstance(node, SwitchNode):
            cases = [
                self._expression(case.when, name, "switch", index, "when")
                for index, case in enumerate(node.switch)
            ]
            return switch_step(node, cases), any(case.is_code for case in cases)
        if isinstance(node, ForkNode):
            return fork_step(node), False
        if isinstance(node, EffectNode):
            self._check_effect(name, node)
        if isinstance(node, CodeNode):
            self._check_code(name, node)
        if isinstance(node, FlowNode):
            for reserved_name in {RUNTIME, TEMP} & node.with_.keys():
                problem = f"{reserved_name} is the runtime's: the other flow does not get it"
                self.findings.warn(
                    problem, "Use another name", "nodes", name, "with", reserved_name
                )
        attribute, make = TEMPLATED[node.kind]
        data = getattr(node, attribute)
        values = self._template(data, name, attribute.removesuffix("_"))
        return make(name, node, values), isinstance(node, CodeNode) or values.is_code

    def _template(self, data: Any, name: str, part: str) -> Template:
        def problem(path: DataPath, sentence: str) -> None:
            self._find(sentence, "Write ${vars.a.b}, or Python in ${…}", name, part, *path)

        value_template = template(data, problem, self.budget)
        self._need_sandbox(
            [p for text in value_template.holes.values() for p in text.parts], name, part
        )
        return value_template

    def _expression(self, text: str, name: str, *path: str | int) -> Expression:
        try:
            expression = parse(text, budget=self.budget)
        except ExpressionError as exc:
            self._find(str(exc), "Write Python, for example vars.total > 10", name, *path)
            return Expression(text, ("vars",), "", None)
        self._need_sandbox([expression], name, *path)
        return expression

    def _need_sandbox(self, parts: list[Any], name: str, *path: str | int) -> None:
        is_code = any(isinstance(part, Expression) and part.path is None for part in parts)
        if is_code and not sandbox.is_available():
            problem = "expressions other than paths need pydantic-monty, which is not installed"
            self._find(problem, "Install callboard[flows]", name, *path)

    def _check_effect(self, name: str, node: EffectNode) -> None:
        kind = EffectType(node.effect)
        if node.deadline is not None and kind not in DEADLINES:
            waits = " and ".join(sorted(DEADLINES))
            self._find(f"{kind} has no deadline", f"{waits} have one", name, "deadline")
        if node.on_timeout is not None and node.deadline is None:
            self._find("on_timeout is never reached", "Give a deadline", name, "on_timeout")
        needed_keys = _NEEDS.get(kind, ())
        if needed_keys and not any(key in node.with_ for key in needed_keys):
            problem = f"{kind} needs {' or '.join(needed_keys)}"
            self._find(problem, f'Write "with": {{"{needed_keys[0]}": …}}', name, "with")

    def _check_code(self, name: str, node: CodeNode) -> None:
        if not sandbox.is_available():
            no_sandbox = "code needs pydantic-monty, which is not installed"
            self._find(no_sandbox, "Install callboard[flows]", name, "code")
            return
        problem = sandbox.unreadable(node.code)
        if problem is not None:
            self._find(problem, "Correct it, or use only what the sandbox supports", name, "code")

    def _find(self, problem: str, remedy: str, name: str, *path: str | int) -> None:
        self.findings.add(problem, remedy, "nodes", name, *path)

    def check_ways(self) -> None:
        """Note ways to nodes that do not exist. If there are none, warn of nodes that no way leads to."""
        nodes, start = self.document.nodes, self.document.start
        broken_ways = [
            (name, to, path)
            for name, node in nodes.items()
            for _, to, path in ways_of(node)
            if to not in nodes
        ]
        for name, to, path in broken_ways:
            remedy = self.findings.suggestion(to, nodes, _OR_ADD)
            self._find(f"there is no node {to!r}", remedy, name, *path)
        if start not in nodes:
            problem = f"there is no node {start!r} to begin with"
            remedy = self.findings.suggestion(start, nodes, _OR_ADD)
            self.findings.add(problem, remedy, "start")
        elif not broken_ways:
            for name in nodes.keys() - _reachable_nodes(self.document):
                problem = f"no way leads from {start!r} to {name!r}"
                self.findings.warn(problem, "Remove it, or add a way to it", "nodes", name)


def ways_of(node: AnyNode) -> Iterator[tuple[str, str, DataPath]]:
    """Yield the ways out of a node: a label, the node that it leads to, and its place in the document."""
    match node:
        case SwitchNode():
            for index, case in enumerate(node.switch):
                yield case.when, case.next, ("switch", index, "next")
            yield "else", node.else_, ("else",)
        case ForkNode():
            for branch, to in node.parallel.items():
                yield branch, to, ("parallel", branch)
            yield "join", node.join, ("join",)
        case EachNode():
            yield "each", node.do, ("do",)
            yield "join", node.join, ("join",)
        case LoopNode():
            yield "loop", node.do, ("do",)
            yield "", node.next, ("next",)
        case EndNode():
            return
        case EffectNode() if node.on_timeout is not None:
            yield "", node.next, ("next",)
            yield "timeout", node.on_timeout, ("on_timeout",)
        case _:
            yield "", node.next, ("next",)


def _reachable_nodes(document: FlowDocument) -> set[str]:
    names, queue = {document.start}, [document.start]
    while queue:
        node = document.nodes.get(queue.pop())
        if node is not None:
            new_names = {to for _, to, _ in ways_of(node)} - names
            names |= new_names
            queue += new_names
    return names
