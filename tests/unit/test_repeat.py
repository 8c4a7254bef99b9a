"""What `poe repeat` reads of pytest's output, and what it prints."""

from __future__ import annotations

from tests.harness.repeat import failed_tests, table, workers

OUTPUT = """
....F.E
FAILED tests/a.py::test_one[x-y] - AssertionError: assert 1 == 2
FAILED tests/a.py::test_two
ERROR tests/b.py::test_three - RuntimeError
ERROR tests/a.py::test_one[x-y] - leaked
3 failed, 1 passed in 2.00s
"""


def test_every_test_of_the_summary_is_named_once() -> None:
    """Failures and errors count alike; the words behind the id are left out."""
    assert failed_tests(OUTPUT) == [
        "tests/a.py::test_one[x-y]",
        "tests/a.py::test_two",
        "tests/b.py::test_three",
    ]


def test_the_table_begins_with_what_failed_most_often() -> None:
    """Each line has the seeds with which the test failed."""
    assert table({"b": [1], "c": [1, 2], "a": [3]}, 5) == [
        "2 of 5  c  seeds 1 2",
        "1 of 5  a  seeds 3",
        "1 of 5  b  seeds 1",
    ]


def test_rounds_spread_tests_as_the_gate_does() -> None:
    """The options are those of the task `tests` in pyproject.toml, without its reports."""
    assert workers() == ["--workers", "5"]
