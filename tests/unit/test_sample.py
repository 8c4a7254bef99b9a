"""The gate's sample of tests on servers: fixed, and never without one of a test's items."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.sample import TURNS, left_out, turn, without_turn

if TYPE_CHECKING:
    import pytest

ROOT = Path("/tests")


@dataclass(frozen=True)
class Item:
    """As much of a collected test as the sample looks at."""

    folder: str
    originalname: str
    parameter: str
    markers: frozenset[str] = field(default_factory=lambda: frozenset(("postgres",)))

    @property
    def path(self) -> Path:
        """Its file."""
        return ROOT / self.folder / "test_x.py"

    @property
    def nodeid(self) -> str:
        """Its id."""
        return f"{self.path}::{self.originalname}[{self.parameter}]"

    def get_closest_marker(self, name: str) -> str | None:
        """The marker of this name."""
        return name if name in self.markers else None


def played(items: list[Item]) -> list[Item]:
    """The items that the gate plays."""
    collected: Any = items
    skipped_items: Any = left_out(collected, ROOT)
    return [item for item in items if item not in skipped_items]


def test_a_part_is_played_and_the_same_in_every_order() -> None:
    """Each test has a quarter of its own, or a sixth by its folder, rounded up."""
    items = [Item("behaviour", name, str(n)) for name in ("test_a", "test_b") for n in range(7)]
    items += [Item("system", "test_c", str(n)) for n in range(7)]

    played_items = played(items)

    assert [item.originalname for item in played_items] == ["test_a"] * 2 + ["test_b"] * 2 + [
        "test_c"
    ] * 2
    assert set(played(items[::-1])) == set(played_items)


def test_what_needs_no_server_is_played_whole() -> None:
    """So is a test on servers that is played with few parameters, or in another folder."""
    items = [Item("behaviour", "test_a", str(n), frozenset()) for n in range(5)]
    items += [Item("system", "test_b", str(n), frozenset()) for n in range(3)]
    items += [Item("properties", "test_c", str(n)) for n in range(3)]
    items += [Item("unit", "test_e", str(n)) for n in range(9)]
    items += [Item("behaviour", "test_d", "nats")]

    assert played(items) == items


def test_the_deaths_that_the_model_plays_are_sampled_too() -> None:
    """They are hundreds, in virtual time."""
    items = [
        Item("properties", "test_a_fault_at_every_store_call", str(n), frozenset())
        for n in range(16)
    ]

    assert len(played(items)) == 2


def test_long_tests_of_processes_are_sampled_without_a_server_too() -> None:
    """One store of those is played that start processes for seconds."""
    items = [Item("system", "test_a", kind, frozenset(("slow",))) for kind in ("files", "sqlite")]

    assert len(played(items)) == 1


def test_costly_tests_take_turns_and_have_all_their_parameters_in_one() -> None:
    """Others are in each turn."""
    costly = [
        Item("system", f"test_{n}", kind, frozenset(("costly",)))
        for n in range(20)
        for kind in ("a", "b")
    ]
    others = [Item("system", "test_other", str(n)) for n in range(3)]
    items: Any = [*costly, *others]

    played_by_turn = [set(items) - set(without_turn(items, now)) for now in range(TURNS)]

    assert set.union(*played_by_turn) == set(items)
    assert set.intersection(*played_by_turn) == set(others)
    for part in played_by_turn:
        names = [item.originalname for item in part if item in costly]
        assert {names.count(name) for name in names} == {2}


def test_a_commit_has_the_same_turn_in_each_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A variable names another; a folder without a repository has the first one."""
    monkeypatch.delenv("CALLBOARD_TEST_TURN", raising=False)
    assert turn(Path(__file__).parent) == turn(Path(__file__).parent)
    assert turn(tmp_path) == 0

    monkeypatch.setenv("CALLBOARD_TEST_TURN", str(TURNS + 1))

    assert turn(tmp_path) == 1
