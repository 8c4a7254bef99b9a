"""Simple expressions are evaluated without the sandbox, and have the value that it gives them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._workflow.documents import sandbox
from actors._workflow.documents.expressions import LARGEST, ExpressionError, NodeScope, parse
from actors._workflow.documents.expressions import LONGEST_EXPRESSION as LONGEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors._workflow.documents.expressions import Expression

VARS: Final[dict[str, Any]] = {
    "n": 7,
    "z": 0,
    "x": -2.5,
    "most": LARGEST,
    "more": LARGEST + 1,
    "s": "yes",
    "e": "",
    "long": "x" * (LONGEST + 1),
    "wide": "wörld",
    "t": True,
    "f": False,
    "none": None,
    "l": [3, True, "yes", None, [1]],
    "d": {"a": 1, "b": {"c": 2.0}},
}
SCOPE: Final = NodeScope(VARS, ["left"], "2026-01-01T00:00:00+00:00")
PARTS: Final = (
    *(f"vars.{name}" for name in VARS),
    *("vars.d.a", "vars.d.b.c", "vars.l[0]", "vars.l[-1]", "vars.missing", "vars.d.missing"),
    *("1", "-1", "2.0", "0.1", "'yes'", "'no'", "'ä'", "true", "null", "branch[0]", "now"),
)
JOINS: Final = ("+", "-", "*", "==", "!=", "<", "<=", ">", ">=", "and", "or")


class Counted:
    """Counts evaluations of the sandbox."""

    def __init__(self) -> None:
        self.count = 0

    def evaluate(self, code: str, inputs: Mapping[str, Any], limits: Any, *, quick: bool) -> Any:
        """Evaluate, and count it."""
        self.count += 1
        longer = replace(limits, seconds=30.0)  # a busy machine is slow
        return _EVALUATE(code, inputs, longer, quick=quick)


_EVALUATE: Final = sandbox.evaluate


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Counts evaluations of this test."""
    counter = Counted()
    monkeypatch.setattr(sandbox, "evaluate", counter.evaluate)
    return counter


def expression(chance: random.Random, depth: int) -> str:
    """Return an expression of the kinds that may be simple."""
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(PARTS)
    if chance.random() < 0.15:
        return f"(not {expression(chance, depth - 1)})"
    left, right = expression(chance, depth - 1), expression(chance, depth - 1)
    return f"({left} {chance.choice(JOINS)} {right})"


def outcome_text(expr: Expression) -> str:
    """Return the value of an expression with its type, or the words of its error."""
    try:
        return repr(expr.value(SCOPE))
    except ExpressionError as exc:
        return str(exc)


@pytest.mark.item(464)
def test_random_simple_expressions_have_the_value_of_the_sandbox(counter: Counted) -> None:
    """Value, type and error; most of those with a value need no call of it."""
    chance, quick = random.Random(3), 0
    for _ in range(1_500):
        parsed = parse(expression(chance, 2))
        before = counter.count
        outcome = outcome_text(parsed)
        quick += counter.count == before
        assert outcome == outcome_text(replace(parsed, direct=None)), parsed.text

    assert quick > 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("vars.n < 10", True),
        ("vars.n * 6 + 1", 43),
        ("vars.s == 'yes' and vars.n > 2.5", True),
        ("vars.e or vars.s", "yes"),
        ("not vars.none", True),
        ("vars.d.b.c == 2", True),
        ("vars.most - 1", LARGEST - 1),
    ],
)
def test_a_simple_expression_needs_no_sandbox(counter: Counted, text: str, value: Any) -> None:
    """Also where other expressions of the flow need one."""
    assert parse(text).value(SCOPE) == value
    assert counter.count == 0


@pytest.mark.parametrize(
    "text",
    [
        *("vars.more + 1", "vars.most + 1", "vars.long == 'x'", "vars.wide == 'x'", "vars.l == []"),
        *("vars.t == 1", "vars.n / 2", "len(vars.s) > 1", "1 < vars.n < 9", "vars.s + 'x'"),
    ],
)
def test_other_expressions_are_left_to_the_sandbox(counter: Counted, text: str) -> None:
    """Large numbers, long and foreign texts, collections, mixed kinds, and all other operations."""
    parse(text).value(SCOPE)
    assert counter.count == 1


def test_what_has_no_value_has_the_error_of_the_sandbox(counter: Counted) -> None:
    """A missing name and kinds that do not fit."""
    for text in ("vars.missing > 1", "vars.s < 1", "vars.none + 1"):
        with pytest.raises(ExpressionError, match=r"KeyError|TypeError"):
            parse(text).value(SCOPE)
    assert counter.count == 3


def test_functions_of_a_flow_and_further_names_are_left_to_the_sandbox(counter: Counted) -> None:
    """Their names may be those of the scope."""
    assert parse("vars.n + 1").value(SCOPE, setup_code="x = 1\n") == 8
    assert parse("value + 1", frozenset({"value"})).value(SCOPE, more={"value": 2}) == 3
    assert parse("[vars for vars in [1]][0] < 2").value(SCOPE) is True
    assert counter.count == 3
