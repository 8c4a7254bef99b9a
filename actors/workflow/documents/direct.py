"""Direct evaluation of simple expressions: comparisons, sums and conditions of short values.

Such an expression has the same value in the sandbox, which takes a call of another process. What is not simple,
or has no value, is left to the sandbox.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

LARGEST: Final = 2**53
"""Numbers of a greater amount are left to the sandbox. Up to here integers are exact as floats, too."""
LONGEST: Final = 1_000
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


class NotSimpleError(Exception):
    """The value of an expression needs the sandbox."""


def direct(
    node: ast.expr, path_in: Callable[[ast.expr], tuple[str | int, ...] | None]
) -> Direct | None:
    """Return the direct evaluation of an expression; None if the sandbox always has to evaluate it.

    `path_in` returns the path of an expression that is one.
    """
    found: Direct | None

    def read(one: ast.expr) -> Direct | None:
        return direct(one, path_in)

    path = path_in(node)
    match node:
        case _ if path is not None:
            found = _path(path)
        case ast.Constant(value):
            found = _constant(value)
        case ast.Compare(left, [op], [right]):
            found = _both(read(left), read(right), _comparison(type(op)))
        case ast.BinOp(left, op, right) if type(op) in _SUMS:
            found = _both(read(left), read(right), _sum(_SUMS[type(op)]))
        case ast.UnaryOp(ast.Not(), operand):
            found = _not(read(operand))
        case ast.BoolOp(op, values):
            found = _condition([read(one) for one in values], until=isinstance(op, ast.Or))
        case _:
            found = None
    return found


def _constant(value: Any) -> Direct | None:
    try:
        simple = _simple(value)
    except NotSimpleError:
        return None
    return lambda _: simple


def _path(path: tuple[str | int, ...]) -> Direct:
    name, steps = str(path[0]), path[1:]

    def value(scope: Any) -> Any:
        found: Any = getattr(scope, name)
        for step in steps:
            kind = dict if isinstance(step, str) else list
            if not isinstance(found, kind):
                raise NotSimpleError
            try:
                found = found[step]  # type: ignore[index]
            except LookupError:
                raise NotSimpleError from None
        return _simple(found)

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
        if equality is None or kinds == {"bool", "number"}:
            raise NotSimpleError
        return equality(left, right)

    return compare


def _sum(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def added(left: Any, right: Any) -> Any:
        if _kind(left) != "number" or _kind(right) != "number":
            raise NotSimpleError
        return _simple(work(left, right))

    return added


def _not(operand: Direct | None) -> Direct | None:
    return None if operand is None else lambda scope: not operand(scope)


def _condition(parts: list[Direct | None], *, until: bool) -> Direct | None:
    """Return the evaluation of ``or``, until a part is true, or of ``and``, until a part is false."""
    known = [one for one in parts if one is not None]
    if len(known) < len(parts):
        return None

    def value(scope: Any) -> Any:
        found: Any = None
        for one in known:
            found = one(scope)
            if bool(found) is until:
                return found
        return found

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
    if kind is str and len(value) <= LONGEST and value.isascii():
        return value
    if kind in {int, float} and -LARGEST <= value <= LARGEST:
        return value
    raise NotSimpleError
