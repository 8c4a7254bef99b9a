"""The power is lost at each persistence point, and takes what is not synced: the run keeps its promises."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.stores import no_fault
from tests.system.workflow.dying_graphs import program, state_of, world_of
from tests.system.workflow.power import FilesDisk, SqliteDisk
from tests.system.workflow.test_kills import POINTS, check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.workflow.stores import Stores
    from tests.system.workflow.power import Content


class Cuts:
    """A hook that notes, at each point, what a loss of power would leave, and what the world has seen."""

    def __init__(self, disk: Any, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._seen: set[str] = set()
        self.contents: list[tuple[str, Content, list[str]]] = []

    def __call__(self, point: str) -> None:
        """Note what is left."""
        if isinstance(self._disk, SqliteDisk) and point == "transaction committed":
            self._disk.committed()
        world = world_of(self._folder)
        for content in self._disk.cuts():
            digest = hashlib.sha256(repr((sorted(content.items()), world)).encode()).hexdigest()
            if digest not in self._seen:
                self._seen.add(digest)
                self.contents.append((point, content, world))


def played(kind: str, folder: Path, fault: Any, disk: Any) -> Stores:
    """Run the program to its end; the disk gets the database that it uses."""
    return program(
        kind, folder, fault, prepare=lambda stores: setattr(disk, "database", stores.database)
    )


def cut_folders(
    cuts: list[tuple[str, Content, list[str]]], folder: Path
) -> Iterator[tuple[str, Path]]:
    """Yield the points, each with a folder that has what is left."""
    for number, (point, content, world) in enumerate(cuts):
        cut_folder = folder / f"cut{number}"
        cut_folder.mkdir()
        for name, written in content.items():
            if name != "world":
                (cut_folder / name).write_bytes(written)
        (cut_folder / "world").write_text("".join(f"{line}\n" for line in world), encoding="utf-8")
        yield point, cut_folder


@pytest.mark.costly
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.item(398, 404, 414, 415, 441, 442, 443)
@pytest.mark.parametrize("kind", POINTS)
def test_a_run_survives_a_loss_of_power_at_every_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each run ends, no recorded effect is executed again, and at-most-once effects happen at most once."""
    folder = tmp_path / "run"
    folder.mkdir()
    disk: Any = FilesDisk(folder, monkeypatch) if kind == "files" else SqliteDisk(folder)
    cuts = Cuts(disk, folder)
    played(kind, folder, cuts, disk).close()
    monkeypatch.undo()

    for number, (point, cut_folder) in enumerate(cut_folders(cuts.contents, tmp_path)):
        stores = program(kind, cut_folder, no_fault)
        check({"number": number, "point": point, **state_of(stores)})
        stores.close()

    assert len(cuts.contents) > 40
