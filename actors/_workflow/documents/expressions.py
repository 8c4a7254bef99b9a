"""Expressions of flow documents: paths such as ``vars.order.id``, conditions, sums, and other Python.

Plain paths and simple expressions are evaluated here, the rest in the sandbox, which takes a call of another
process. A simple expression compares, adds or combines short values, and has the same value in the sandbox. If
it has none here, the sandbox is asked.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Final, TypeAlias

from typing_extensions import override

from actors._workflow.documents import sandbox
from actors.errors import ContractError, Facts

LONGEST: Final = 4000
"""Maximum length of an expression, in characters."""
MOST_PARSED: Final = 500_000
"""Maximum size of a document's expressions in all, in characters, without plain paths."""
_EACH: Final = 10
"""Characters that an expression counts besides its own: a short one takes as long as ten more."""
LIMITS: Final = sandbox.SandboxLimits()
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_BUILTINS: Final = frozenset(name for name in dir(builtins) if not name.startswith("_"))
NAMES: Final = ("vars", "branch", "now")
_UNSUPPORTED: Final = {
    "Yield": "yield",
    "YieldFrom": "yield from",
    "Await": "await",
    "TemplateStr": "a template string",
}
"""By class of Python's parser: the parts of expressions that the sandbox does not execute."""
_DOTTED: Final = re.compile(r"vars(\.[A-Za-z_][A-Za-z0-9_]*)+")
"""Pattern of plain paths, which most expressions are.

They are read without Python's parser, which would be slow for a large document.
"""
LARGEST: Final = 2**53
"""Numbers of a greater amount are left to the sandbox. Up to here integers are exact as floats, too."""
LONGEST_EXPRESSION: Final = 1_000
"""Longer texts are left to the sandbox, and texts that are not ASCII."""
_ORDERS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUALITIES: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SUMS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}

Direct: TypeAlias = Callable[[Any], Any]
"""The evaluation of an expression. It gets the scope, and raises `NotSimpleError` if the sandbox is needed."""


class ExpressionError(Facts, ContractError, ValueError):
    """An expression cannot be read, or has no value."""

    text = "{expression}: {problem}"
    expression: str
    problem: str


@dataclass(frozen=True, slots=True)
class NodeScope:
    """The names that expressions may use.

    Attributes:
        vars: The run's vars.
        branch: The names of the branches that the node is called in, the outermost first.
        now: The instant in ISO 8601, in UTC.
    """

    vars: Mapping[str, Any]
    branch: list[str]
    now: str


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that was read.

    Attributes:
        text: The expression as the document has it.
        path: The steps of a plain path, whose first is its name, or None if the expression is no plain path.
        code: The expression as Python, with ``vars["a"]`` for ``vars.a``.
        names: The names of the vars that the expression reads, or None if it may read any var.
        direct: The evaluation without the sandbox, or None if the sandbox always evaluates the expression.
    """

    text: str
    path: tuple[str | int, ...] | None
    code: str
    names: frozenset[str] | None
    direct: Direct | None = None

    @property
    def is_code(self) -> bool:
        """True if the sandbox always evaluates it. It may have loops and calls, so it may take a second."""
        return self.path is None and self.direct is None

    def value(
        self, scope: NodeScope, *, more: Mapping[str, Any] | None = None, setup_code: str = ""
    ) -> Any:
        """Return the value of the expression.

        Args:
            scope: The names that it may use.
            more: Further names, as `parse` had them.
            setup_code: Code that the sandbox executes first.

        Raises:
            ExpressionError: The expression has no value.
        """
        if self.path is not None:
            return self._value_at_path(scope)
        if self.direct is not None and not setup_code:
            try:
                return self.direct(scope)
            except (NotSimpleError, RecursionError):
                pass  # the sandbox has its value, or the reason why it has none
        if self.names is None:  # without the runtime's own vars, which change with each step
            variables = {name: var for name, var in scope.vars.items() if not name.startswith("_")}
        else:
            variables = {name: scope.vars[name] for name in self.names if name in scope.vars}
        inputs = {"vars": variables, "branch": scope.branch, "now": scope.now, **(more or {})}
        try:
            return sandbox.evaluate(setup_code + self.code, inputs, LIMITS, quick=not self.is_code)
        except sandbox.SandboxError as exc:
            raise ExpressionError(self.text, str(exc)) from None

    def _value_at_path(self, scope: NodeScope) -> Any:
        assert self.path is not None
        value: Any = getattr(scope, str(self.path[0]))
        for index, step in enumerate(self.path[1:], start=1):
            has_step = isinstance(step, str) and isinstance(value, dict) and step in value
            if isinstance(step, int) and isinstance(value, list):
                has_step = -len(value) <= step < len(value)
            if not has_step:
                raise ExpressionError(self.text, _missing_step(self.path[: index + 1], value))
            value = value[step]
        return value


@dataclass(slots=True)
class ParsingBudget:
    """The characters of expressions that may still be parsed for a document.

    Without that limit a document of 8 MiB would be parsed for minutes.
    """

    characters_left: int = MOST_PARSED

    def spend(self, text: str) -> None:
        """Count an expression.

        Raises:
            ExpressionError: The document has too many expressions.
        """
        self.characters_left -= len(text) + _EACH
        if self.characters_left < 0:
            problem = f"its document has more than {MOST_PARSED} characters of expressions"
            raise ExpressionError(text[:40], f"{problem}. Divide it into flows, or use code nodes")


def parse(
    text: str, more: frozenset[str] = frozenset(), budget: ParsingBudget | None = None
) -> Expression:
    """Parse an expression, which may also use the names of `more`.

    A plain path does not count on the budget.

    Raises:
        ExpressionError: The text is not an expression, or the budget is used up.
    """
    if len(text) > LONGEST:
        problem = f"it has {len(text)} characters, more than {LONGEST}. Use a code node"
        raise ExpressionError(text[:40] + "…", problem)
    stripped_text = text.strip()
    if _DOTTED.fullmatch(stripped_text) and not any(
        map(iskeyword, path := stripped_text.split("."))
    ):
        return Expression(text, tuple(path), stripped_text, frozenset(path[1:2]))
    if budget is not None:
        budget.spend(text)
    try:
        tree = ast.parse(stripped_text, mode="eval").body
        bound = _bound_names(tree)
        _check_parts(tree)
        rewriter = _Rewriter(bound | more)
        tree = rewriter.visit(tree)
        code = ast.unparse(tree)
    except _UnknownNameError as exc:
        raise ExpressionError(text, str(exc)) from None
    # Python's parser raises the last two for a text that is nested too deep.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        reason = exc.msg if isinstance(exc, SyntaxError) else type(exc).__name__
        raise ExpressionError(text, f"it is no expression ({reason})") from None
    steps = _path_in(tree)
    evaluation = direct(tree, _path_in) if steps is None and not bound | more else None
    return Expression(text, steps, code, rewriter.read_names, evaluation)


class _UnknownNameError(Exception):
    pass


class _Rewriter(ast.NodeTransformer):
    """Transformer of ``vars.a.b`` into ``vars["a"]["b"]``.

    It also replaces ``true``, ``false`` and ``null`` by constants.
    """

    def __init__(self, bound: set[str]) -> None:
        self._bound = bound
        self._is_read_whole = False
        self._read_names: set[str] = set()

    @property
    def read_names(self) -> frozenset[str] | None:
        """The names of the vars that the expression reads, or None if it may read any var."""
        return None if self._is_read_whole else frozenset(self._read_names)

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):  # a method of a value, whose name stays
            node.func.value = self.visit(node.func.value)
        else:
            node.func = self.visit(node.func)
        node.args = [self.visit(arg) for arg in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        return node

    @override
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        root: ast.expr = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        is_of_vars = isinstance(root, ast.Name) and root.id == "vars"
        if not is_of_vars or "vars" in self._bound:
            return self.generic_visit(node)
        subscript = ast.Subscript(node.value, ast.Constant(node.attr), ast.Load())
        return self.visit_Subscript(subscript)

    @override
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        key = node.slice
        is_of_vars = isinstance(node.value, ast.Name) and node.value.id == "vars"
        if is_of_vars and isinstance(key, ast.Constant) and isinstance(key.value, str):
            self._read_names.add(key.value)
            return node
        return self.generic_visit(node)

    @override
    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._bound:
            return node
        if node.id in _WORDS:
            return ast.Constant(_WORDS[node.id])
        if node.id == "vars":
            self._is_read_whole = True
        elif node.id not in NAMES and node.id not in _BUILTINS:
            raise _UnknownNameError(f"{node.id!r} is no name here. Vars are read as vars.{node.id}")
        return node


def _check_parts(tree: ast.expr) -> None:
    """Check that the sandbox can execute all parts of an expression.

    Raises:
        _UnknownNameError: It cannot.
    """
    for node in ast.walk(tree):
        is_async = isinstance(node, ast.comprehension) and node.is_async
        if is_async or type(node).__name__ in _UNSUPPORTED:
            word = "async for" if is_async else _UNSUPPORTED[type(node).__name__]
            raise _UnknownNameError(f"{word} is not supported in expressions")


def _bound_names(tree: ast.expr) -> set[str]:
    """Return the names that the expression itself binds."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def _path_in(node: ast.expr) -> tuple[str | int, ...] | None:
    steps: list[str | int] = []
    while isinstance(node, ast.Subscript):
        key = node.slice
        if isinstance(key, ast.UnaryOp) and isinstance(key.op, ast.USub):
            inner = key.operand
            value: Any = (
                -inner.value
                if isinstance(inner, ast.Constant) and type(inner.value) is int
                else None
            )
        else:
            value = key.value if isinstance(key, ast.Constant) else None
        if type(value) not in {str, int}:
            return None
        steps.append(value)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in NAMES:
        return None
    return (node.id, *reversed(steps))


def _missing_step(path: tuple[str | int, ...], parent: Any) -> str:
    name = str(path[0]) + "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[1:]
    )
    if isinstance(parent, dict):
        names = [key for key in parent if not key.startswith("_")][:10]
        return f"there is no {name}; there are {', '.join(names) or 'no names'}"
    size = f" of {len(parent)}" if isinstance(parent, list) else ""
    return f"there is no {name}: the value before it is a {type(parent).__name__}{size}"


class NotSimpleError(Exception):
    """The value of an expression needs the sandbox."""


def direct(
    node: ast.expr, path_in: Callable[[ast.expr], tuple[str | int, ...] | None]
) -> Direct | None:
    """Return the direct evaluation of an expression; None if the sandbox always has to evaluate it.

    `path_in` returns the path of an expression that is one.
    """
    evaluation: Direct | None

    def read(part: ast.expr) -> Direct | None:
        return direct(part, path_in)

    path = path_in(node)
    match node:
        case _ if path is not None:
            evaluation = _path(path)
        case ast.Constant(value):
            evaluation = _constant(value)
        case ast.Compare(left, [op], [right]):
            evaluation = _both(read(left), read(right), _comparison(type(op)))
        case ast.BinOp(left, op, right) if type(op) in _SUMS:
            evaluation = _both(read(left), read(right), _sum(_SUMS[type(op)]))
        case ast.UnaryOp(ast.Not(), operand):
            evaluation = _not(read(operand))
        case ast.BoolOp(op, values):
            evaluation = _condition([read(value) for value in values], until=isinstance(op, ast.Or))
        case _:
            evaluation = None
    return evaluation


def _constant(value: Any) -> Direct | None:
    try:
        simple = _simple(value)
    except NotSimpleError:
        return None
    return lambda _: simple


def _path(path: tuple[str | int, ...]) -> Direct:
    name, steps = str(path[0]), path[1:]

    def value(scope: Any) -> Any:
        current_value: Any = getattr(scope, name)
        for step in steps:
            kind = dict if isinstance(step, str) else list
            if not isinstance(current_value, kind):
                raise NotSimpleError
            try:
                current_value = current_value[step]  # type: ignore[index]
            except LookupError:
                raise NotSimpleError from None
        return _simple(current_value)

    return value


def _both(
    left: Direct | None, right: Direct | None, work: Callable[[Any, Any], Any] | None
) -> Direct | None:
    if left is None or right is None or work is None:
        return None
    return lambda scope: work(left(scope), right(scope))


def _comparison(kind: type[ast.cmpop]) -> Callable[[Any, Any], bool] | None:
    order, equality = _ORDERS.get(kind), _EQUALITIES.get(kind)
    if order is None and equality is None:
        return None

    def compare(left: Any, right: Any) -> bool:
        kinds = {_kind(left), _kind(right)}
        if order is not None and kinds in ({"number"}, {"text"}):
            return order(left, right)
        # True == 1 in Python: here and for other mixed kinds, the sandbox decides.
        if equality is None or kinds == {"bool", "number"}:
            raise NotSimpleError
        return equality(left, right)

    return compare


def _sum(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def add(left: Any, right: Any) -> Any:
        if _kind(left) != "number" or _kind(right) != "number":
            raise NotSimpleError
        return _simple(work(left, right))

    return add


def _not(operand: Direct | None) -> Direct | None:
    return None if operand is None else lambda scope: not operand(scope)


def _condition(parts: list[Direct | None], *, until: bool) -> Direct | None:
    """Return the evaluation of ``or``, until a part is true, or of ``and``, until a part is false."""
    evaluations = [part for part in parts if part is not None]
    if len(evaluations) < len(parts):
        return None

    def value(scope: Any) -> Any:
        result: Any = None
        for evaluation in evaluations:
            result = evaluation(scope)
            if bool(result) is until:
                return result
        return result

    return value


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else "bool"
    return "text" if isinstance(value, str) else "number"


def _simple(value: Any) -> Any:
    """Return a value that is short and no collection.

    Raises:
        NotSimpleError: It is another value.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str and len(value) <= LONGEST_EXPRESSION and value.isascii():
        return value
    if kind in {int, float} and -LARGEST <= value <= LARGEST:
        return value
    raise NotSimpleError
