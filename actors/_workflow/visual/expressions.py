"""Expressions at pins, evaluated when a node reads the pin, and the functions that they may call.

The functions are those of the flow, and ours: code of a drawing may call these, too. All are executed in the
sandbox.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from actors._workflow.documents import sandbox
from actors._workflow.documents.expressions import (
    NAMES,
    Expression,
    ExpressionError,
    NodeScope,
    ParsingBudget,
    parse,
)
from actors._workflow.visual.drawing import Drawing, DrawingFindings, DrawnNode

SANDBOX_FUNCTIONS: Final = {
    "parse_json": """\
def parse_json(value):
    import json
    return json.loads(value) if isinstance(value, str) else value
""",
    "to_json": """\
def to_json(value):
    import json
    return json.dumps(value)
""",
    "shq": """\
def shq(value):
    return "" if value is None else str(value).replace("'", "'\\\\''")
""",
    "text_of": """\
def text_of(value):
    found, left, steps = [], [value], 0
    while left and steps < 100:
        one, steps = left.pop(), steps + 1
        if isinstance(one, str):
            found.append(one)
        if isinstance(one, dict):
            texts = [one.get(name) or one.get(name + "_preview") for name in ("stdout", "stderr")]
            found.extend([text for text in texts if isinstance(text, str)])
            left.append(one.get("output"))
            left.extend(one["results"] if isinstance(one.get("results"), list) else [])
    return "\\n".join([text for text in found if text])
""",
}
"""The code of each function by its name.

``parse_json`` and ``to_json`` read and write JSON. ``shq`` returns a text for a place between single quotes
in a command of a shell. ``text_of`` returns the text in the result of a tool.
"""


def called_functions(code: str) -> frozenset[str]:
    """Return the names of these functions that are in `code`."""
    return frozenset(name for name in SANDBOX_FUNCTIONS if re.search(rf"\b{name}\b", code))


def code_of(names: Collection[str]) -> str:
    """Return the code of functions."""
    return "".join(text for name, text in SANDBOX_FUNCTIONS.items() if name in names)


def functions_for(code: str) -> str:
    """Return the code of the functions whose names are in `code`."""
    return code_of(called_functions(code))


MOST_FUNCTIONS: Final = 1_000
"""Maximum number of functions of a flow. Each expression is searched for all of their names."""
_VALUE: Final = "value"
_RESERVED_NAMES: Final = frozenset({*NAMES, _VALUE, *SANDBOX_FUNCTIONS, *dir(builtins)})
_MISSING: Final = "it is evaluated by pydantic-monty, which is not there"
_INSTALL: Final = "Install callboard[flows]"


@dataclass(frozen=True, slots=True)
class PinExpression:
    """An expression at a pin.

    Attributes:
        expression: The expression.
        functions: Code of the functions that it may call; empty if it calls none.
    """

    expression: Expression
    functions: str

    @property
    def is_code(self) -> bool:
        """True if the sandbox always evaluates it."""
        return self.expression.is_code

    def value(self, value: Any, scope: NodeScope) -> Any:
        """Return the value of the pin; `value` is the pin's value without the expression.

        Raises:
            ExpressionError: The expression has no value.
        """
        return self.expression.value(scope, more={_VALUE: value}, setup_code=self.functions)


def expressions_in(
    drawing: Drawing, functions: Any, findings: DrawingFindings
) -> dict[str, dict[str, PinExpression]]:
    """Return the expressions of all nodes that edges lead to or from, by node and pin."""
    library = _Library(dict(_functions_in(functions, findings)))
    used_nodes = {end for wire in drawing.wires for end in (wire.source, wire.target)}
    used_nodes.add(drawing.entry or "")
    return {
        node.id: expressions
        for node in drawing.nodes.values()
        if node.id in used_nodes and (expressions := _expressions_of(node, library, findings))
    }


def _expressions_of(
    node: DrawnNode, library: _Library, findings: DrawingFindings
) -> dict[str, PinExpression]:
    expressions = {}
    for pin, text in node.part("pinExpressions").items():
        if text is None or (isinstance(text, str) and not text.strip()):
            continue
        path = ("data", "pinExpressions", pin)
        if not isinstance(text, str):
            problem = f"the expression at pin {pin!r} is a {type(text).__name__}, not a text"
            findings.at_node(node, problem, "Write an expression", *path)
        elif not sandbox.is_available():
            findings.at_node(node, f"the expression at pin {pin!r}: {_MISSING}", _INSTALL, *path)
        else:
            try:
                expressions[pin] = _expression(text, library)
            except ExpressionError as exc:
                remedy = "Correct it, or use a code node, and connect it to the pin"
                findings.at_node(node, f"pin {pin!r}: {exc}", remedy, *path)
    return expressions


def _expression(text: str, library: _Library) -> PinExpression:
    expression = parse(text, library.names, library.budget)
    if expression.path == ("vars",):  # without the runtime's own, as the sandbox sees them
        expression = replace(expression, path=None)
    if expression.path is None and (problem := sandbox.unreadable(expression.code)) is not None:
        raise ExpressionError(text, problem)
    return PinExpression(expression, library.code_for(expression.code))


class _Library:
    """The functions of a flow. Expressions share the text of their code, which may be long.

    Attributes:
        names: The names that expressions may use besides `NAMES`.
        budget: The limit of the flow's expressions.
    """

    def __init__(self, functions: Mapping[str, str]) -> None:
        self._functions, self.budget = functions, ParsingBudget()
        self.names = frozenset({_VALUE, *SANDBOX_FUNCTIONS, *functions})
        self._code = "\n".join(functions.values()) + "\n" if functions else ""
        self._own_calls = called_functions(self._code)
        self._texts: dict[str, str] = {}
        """Texts of code by the code of the sandbox's functions, which they begin with."""

    def code_for(self, code: str) -> str:
        """Return the code of the functions that an expression may call."""
        if not any(name in code for name in self._functions):
            return functions_for(code)
        first = code_of(self._own_calls | called_functions(code))
        return self._texts.setdefault(first, first + self._code)


def _functions_in(raw: Any, findings: DrawingFindings) -> Iterator[tuple[str, str]]:
    """Yield name and code of the functions of a flow that can be called."""
    if raw and not isinstance(raw, list):
        findings.add("functions is no list", "Give a list of functions", "functions")
    functions = raw if isinstance(raw, list) else []
    if len(functions) > MOST_FUNCTIONS:
        size_problem = f"it has {len(functions)} functions, more than {MOST_FUNCTIONS}"
        findings.add(
            size_problem, "Divide it into flows, and call them as subflow nodes", "functions"
        )
        return
    used_names: set[str] = set()
    for index, function in enumerate(functions):
        name, code = (
            (function.get("name"), function.get("code"))
            if isinstance(function, dict)
            else (None, None)
        )
        problem, remedy = _name_problem(name, code) or _problem_of(str(name), str(code), used_names)
        if problem:
            findings.add(f"function {name!r}: {problem}", remedy, "functions", index)
        else:
            yield str(name), str(code)


def _name_problem(name: Any, code: Any) -> tuple[str, str] | None:
    if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED_NAMES:
        return "its name cannot be used in expressions", "Give it another one"
    if not isinstance(code, str) or not code.strip():
        return "it has no code", f"Write def {name}(…): …"
    return None


def _problem_of(name: str, code: str, used_names: set[str]) -> tuple[str | None, str]:
    """Return the problem of a function and the remedy. Add the function's names to `used_names`."""
    if not sandbox.is_available():
        return _MISSING, _INSTALL
    remedy = "Correct it, or write it without what the sandbox lacks"
    try:
        problem = sandbox.unreadable(code)
        body = [] if problem else ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        problem, body = f"it cannot be read ({type(exc).__name__})", []
    if problem:
        return problem, remedy
    names = {statement.name for statement in body if isinstance(statement, ast.FunctionDef)}
    if name not in names:
        return f"its code has no def {name}", "Name both alike"
    if duplicates := sorted(names & {*used_names, *NAMES, _VALUE}):
        return f"it defines {duplicates[0]!r}, which has another meaning", "Rename it"
    used_names |= names
    return None, ""
