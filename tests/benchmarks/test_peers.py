"""The comparison with peers without the peers: what it prints, and how it makes their environments."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.peers import environments
from tests.benchmarks.peers.comparison import Comparison, run
from tests.benchmarks.peers.environments import (
    ABSTRACTRUNTIME,
    AEGRA,
    LANGGRAPH,
    VARIABLE,
    Peer,
    PeerMissingError,
    commands,
    last_line,
    python_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


def rates(*values: float) -> Callable[[], Awaitable[float]]:
    """Return a function that returns these rates one after the other, then fails."""
    remaining = iter(values)

    async def rate() -> float:
        value = next(remaining, None)
        if value is None:
            raise PeerMissingError("it is locked")
        return value

    return rate


async def test_the_best_round_of_the_best_setting_is_what_ours_is_compared_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A setting that failed once is named and not tried again."""
    theirs = {"slow": rates(1, 2, 1), "fast": rates(3, 5, 4), "locked": rates(2)}
    await Comparison(
        what="steps",
        peer=ABSTRACTRUNTIME,
        ours=rates(7, 10, 8),
        theirs=theirs,
        goal=5.0,
        facts={"at_once": 1},
    ).run()

    assert json.loads(capsys.readouterr().out) == {
        "benchmark": "peers",
        "what": "steps",
        "at_once": 1,
        "per_s": 10,
        "floor": "abstractruntime 0.13.0; fast",
        "floor_per_s": 5,
        "settings_per_s": {"slow": 2, "fast": 5, "locked": 2},
        "ratio": 2.0,
        "goal": 5.0,
        "failed": {"locked": "it is locked"},
    }


@pytest.mark.item(167)
async def test_peers_that_do_not_run_here_are_named_and_the_rest_goes_on(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This project's own Python has none of them."""
    monkeypatch.setenv(VARIABLE, sys.executable)

    await run(postgres_dsn, scale=0.001)

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["floor"].removeprefix("none of ") for line in lines] == [
        *["abstractruntime"] * 4,
        *["langgraph"] * 2,
        *["abstractruntime"] * 2,
        "aegra",
    ]
    assert all("No module named" in " ".join(line["why"]) for line in lines)


@pytest.mark.parametrize("has_uv", [True, False])
def test_an_environment_has_the_pinned_packages_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_uv: bool
) -> None:
    """It is made by uv if it is there, else by pip; never in this project's environment."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object() if has_uv else None)
    python = str(tmp_path / "bin" / "python")

    for peer in (ABSTRACTRUNTIME, LANGGRAPH, AEGRA):
        assert all(pin.count("==") == 1 for pin in peer.pins)
        _venv, install = commands(peer, tmp_path)
        assert install[1:3] == ["-m", "uv" if has_uv else "pip"]
        assert install[install.index("--python") + 1] == python
        assert install[-len(peer.pins) :] == [*peer.pins]
        assert ("--no-deps" in install) is peer.alone


def test_packages_that_cannot_be_fetched_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the packages and the end of the installer's own."""
    monkeypatch.delenv(VARIABLE, raising=False)
    fails = [sys.executable, "-c", "import sys; sys.exit('no route')"]
    monkeypatch.setattr(environments, "commands", lambda _peer, _folder: [fails])

    with pytest.raises(PeerMissingError, match=r"nobody==1\.0: no route"):
        python_of(Peer(name="nobody", pins=("nobody==1.0",)), tmp_path)

    assert not [*tmp_path.iterdir()]


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call finds it."""
    monkeypatch.delenv(VARIABLE, raising=False)
    folders = []

    def counted(_peer: Peer, folder: Path) -> list[list[str]]:
        folders.append(folder)
        return [[sys.executable, "-c", ""]]

    monkeypatch.setattr(environments, "commands", counted)
    peer = Peer(name="nobody", pins=("nobody==1.0",))

    assert python_of(peer, tmp_path) == python_of(peer, tmp_path)
    assert len(folders) == 1


def test_an_environment_that_another_process_made_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The own one is removed."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def slower(_peer: Peer, partial: Path) -> list[list[str]]:
        other = partial.with_suffix("")
        other.mkdir()
        (other / "theirs").touch()
        return []

    monkeypatch.setattr(environments, "commands", slower)

    python = python_of(Peer(name="nobody", pins=("nobody==1.0",)), tmp_path)

    assert (python.parents[1] / "theirs").exists()
    assert [*tmp_path.iterdir()] == [python.parents[1]]


def test_a_figure_is_the_last_line_of_a_script_that_succeeds() -> None:
    """One that fails, or prints nothing, has no figure."""

    def ended(code: int, out: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, out, "its error")

    assert last_line(AEGRA, ended(0, "a warning\n12.5\n")) == "12.5"
    for done in (ended(1, "12.5\n"), ended(0, "\n")):
        with pytest.raises(PeerMissingError, match=r"aegra-api 0\.6\.0.*: its error"):
            last_line(AEGRA, done)
