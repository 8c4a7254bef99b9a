"""Random expressions have the same value in the sandbox as in CPython, or are refused."""

from __future__ import annotations

import json
import os
import random
import warnings
from types import SimpleNamespace
from typing import Any, Final

import pytest

from actors._workflow.documents.expressions import ExpressionError, NodeScope, parse

EXPRESSIONS: Final = 5_000
VARS: Final[dict[str, Any]] = {
    "n": 7,
    "z": 0,
    "x": -2.5,
    "big": 2**70,
    "s": "Hello, wörld 🎭",
    "e": "",
    "t": True,
    "none": None,
    "l": [3, 1, 2, 2],
    "m": [[1, "a"], [2, "b"]],
    "d": {"a": 1, "b": {"c": [1, 2, 3]}, "Ä": "ö"},
}
_NUMBERS: Final = ("vars.n", "vars.z", "vars.x", "vars.big", "3", "-1", "0.1", "10", "2.0", "True")
_TEXTS: Final = ("vars.s", "vars.e", "'abc'", "'a,b,,c'", "'ß'", "'12'", "'  x '")
_LISTS: Final = ("vars.l", "[]", "[1, 2, 3]", "vars.d.b.c", "list(vars.d)", "[vars.n, vars.z]")
_OTHERS: Final = ("vars.none", "vars.t", "vars.d", "vars.m", "{}", "{'k': vars.n}", "vars.missing")
_OPERATORS: Final = ("+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or")
_CHECKS: Final = ("in", "not in")
_PLACES: Final = ("0", "-1", "1:", ":2", "::-1", "'a'", "5")
_CALLS: Final = (
    "len",
    "str",
    "int",
    "float",
    "bool",
    "abs",
    "sum",
    "min",
    "max",
    "sorted",
    "round",
)
_MORE: Final = ("any", "all", "list", "repr", "tuple")
_METHODS: Final = (
    *("upper()", "lower()", "strip()", "title()", "isdigit()", "split(',')", "find('l')"),
    *("replace('a', 'bb')", "startswith('a')", "endswith('c')", "count('l')", "join(['x', 'y'])"),
)
_SHAPES: Final = (
    *(f"(# {operator} #)" for operator in _OPERATORS),
    *(f"(# {operator} #)" for operator in ("+", "-", "*", "==", "<", "and", "or", *_CHECKS)),
    *(f"{call}(#)" for call in (*_CALLS, *_MORE)),
    *(f"(#).{method}" for method in _METHODS),
    *(f"(#)[{index}]" for index in _PLACES),
    *(
        f"[{item} for i in #{where}]"
        for item in ("i", "str(i)", "#")
        for where in ("", " if i", " if #")
    ),
    *["(# if # else #)"] * 5,
    *("(# is None)", "(not #)", "(-#)", "[#, #]", "[#, #]", "[i * 2 for i in # if i != 2]"),
    "{'p': #, 'q': #}",
)
"""Each ``#`` is an expression."""


def expression(rng: random.Random, depth: int) -> str:
    """Return an expression over `VARS`."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice((*_NUMBERS, *_NUMBERS, *_TEXTS, *_LISTS, *_OTHERS))
    parts = rng.choice(_SHAPES).split("#")
    return parts[0] + "".join(expression(rng, depth - 1) + part for part in parts[1:])


def shaped(value: Any) -> Any:
    """Return a value of vars as CPython reads ``vars.d.b``."""
    return _Names(value) if isinstance(value, dict) else value


class _Names(dict[str, Any]):
    """An object with names as attributes, too."""

    def __getattr__(self, name: str) -> Any:
        """Return a value; a method of dict is found first."""
        try:
            return shaped(self[name])
        except KeyError:
            raise AttributeError(name) from None


def in_cpython(text: str) -> tuple[bool, Any]:
    """Return whether CPython gives a value, and the value as JSON data."""
    names = SimpleNamespace(**{name: shaped(v) for name, v in VARS.items()})
    try:
        with warnings.catch_warnings(action="ignore"):  # such as the call of a text
            value = eval(text, {"vars": names})
        return True, json.loads(json.dumps(value, allow_nan=False))
    except Exception:  # noqa: BLE001 - any
        return False, None


def in_sandbox(text: str) -> tuple[bool, Any]:
    """Return whether the sandbox gives a value, and the value as JSON data."""
    try:
        value = parse(text).value(NodeScope(VARS, [], "2026-01-01T00:00:00+00:00"))
        return True, json.loads(json.dumps(value, allow_nan=False))
    except (ExpressionError, TypeError, ValueError):
        return False, None


@pytest.mark.costly
@pytest.mark.item(464)
def test_random_expressions_have_the_value_that_python_gives_them() -> None:
    """An error in Python is an error here. At least half of the others have a value in the sandbox."""
    first, values, refused = int(os.environ.get("CALLBOARD_SEED", "0")), 0, 0
    for seed in range(first, first + EXPRESSIONS):
        text = expression(random.Random(seed), 3)
        has_value, value = in_cpython(text)
        is_taken, sandbox_value = in_sandbox(text)
        assert has_value or not is_taken, (
            f"seed {seed}: {text}: {sandbox_value!r}, and none in CPython"
        )
        if is_taken:
            texts = (repr(sandbox_value), repr(value))
            assert texts[0] == texts[1], f"seed {seed}: {text}: {texts[0]}, not {texts[1]}"
        values, refused = values + has_value, refused + (has_value and not is_taken)

    assert values > EXPRESSIONS // 5
    assert refused < values // 2
