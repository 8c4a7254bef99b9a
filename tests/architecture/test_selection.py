"""What the conftests leave out by name is there: a renamed test would be played everywhere again, unnoticed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

BEHAVIOUR = Path(__file__).resolve().parents[1] / "behaviour"


def names_in(table: str) -> set[str]:
    """The names of one table of tests/behaviour/conftest.py."""
    for node in ast.parse((BEHAVIOUR / "conftest.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table:
            constants = (part for part in ast.walk(node.value) if isinstance(part, ast.Constant))
            return {str(part.value) for part in constants}
    raise LookupError(table)


def names_of_tests() -> set[str]:
    """Every file of the folder and every test in it, without their `test_`."""
    files = list(BEHAVIOUR.rglob("test_*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    tests = {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return {name.removeprefix("test_") for name in tests | {file.stem for file in files}}


@pytest.mark.parametrize("table", ["_IN_MEMORY", "_WITHOUT_MAIL"])
def test_what_is_left_out_by_name_is_a_file_or_a_test(table: str) -> None:
    """And nobody is named in both tables: what runs in memory alone runs on no broker."""
    assert names_in(table) - names_of_tests() == set()
    assert names_in("_IN_MEMORY") & names_in("_WITHOUT_MAIL") == set()
