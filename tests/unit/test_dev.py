"""What dev.py decides before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dev

VENV = Path("some") / "venv"


def test_an_old_python_is_told_what_is_needed() -> None:
    """The message names the version needed, the one found and where it was found."""
    complaint = dev.python_complaint((3, 9, 2), "old-python")

    assert "3.11 or newer" in complaint
    assert "old-python is 3.9.2" in complaint


def test_a_new_enough_python_is_accepted() -> None:
    """The oldest supported Python and later ones raise no complaint."""
    assert dev.python_complaint((3, 11, 0), "python") == ""
    assert dev.python_complaint((3, 14, 1), "python") == ""


def test_demo_hands_its_arguments_on() -> None:
    """`dev.py demo ARGS` is `callboard demo ARGS` of the environment."""
    assert dev.command("demo", ["docs", "--quick"], VENV) == [
        str(dev.bin_dir(VENV) / "callboard"),
        "demo",
        "docs",
        "--quick",
    ]


def test_test_alone_is_the_whole_gate() -> None:
    """Without arguments `dev.py test` is what CI runs."""
    assert dev.command("test", [], VENV)[0] == str(dev.bin_dir(VENV) / "poe")
    assert dev.command("test", [], VENV)[-1] == "ci"


def test_test_with_arguments_is_pytest() -> None:
    """With arguments `dev.py test` is pytest with these arguments."""
    program, *arguments = dev.command("test", ["-k", "replay"], VENV)

    assert program == str(dev.bin_dir(VENV) / "python")
    assert arguments == ["-m", "pytest", "-k", "replay"]


def test_commands_find_the_environments_programs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH begins with the environment's programs, and the environment counts as active."""
    monkeypatch.setenv("PATH", "elsewhere")
    monkeypatch.setenv("PYTHONHOME", "wrong")
    env = dev.environment(VENV)

    assert env["PATH"] == os.pathsep.join([str(dev.bin_dir(VENV)), "elsewhere"])
    assert env["VIRTUAL_ENV"] == str(VENV)
    assert "PYTHONHOME" not in env


def test_mypy_keeps_what_it_found_where_the_next_clone_finds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The folder is the user's, not the checkout's; a folder that is named already stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    monkeypatch.delenv("MYPY_CACHE_DIR", raising=False)
    assert dev.environment(VENV)["MYPY_CACHE_DIR"] == str(Path("caches/callboard/mypy"))

    monkeypatch.setenv("MYPY_CACHE_DIR", "mine")
    assert dev.environment(VENV)["MYPY_CACHE_DIR"] == "mine"


@pytest.mark.parametrize("name", dev.INPUTS)
def test_the_environment_is_remade_when_its_inputs_change(tmp_path: Path, name: str) -> None:
    """The stamp depends on both files and on the Python."""
    before = dev.wanted_stamp(tmp_path, "3.11")
    (tmp_path / name).write_text("x")

    assert dev.wanted_stamp(tmp_path, "3.11") != before
    assert dev.wanted_stamp(tmp_path, "3.12") != dev.wanted_stamp(tmp_path, "3.11")


def test_an_unknown_verb_shows_the_usage() -> None:
    """The exit code says that nothing was done."""
    done = subprocess.run(
        [sys.executable, dev.__file__, "tset"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "dev.py demo" in done.stdout


def test_ci_runs_the_readmes_test_command() -> None:
    """`.ci/run` ends with the command that the README names."""
    script = (dev.ROOT / ".ci" / "run").read_text()

    assert script.rstrip().endswith("exec python3 dev.py test")


def test_the_gate_in_memory_leaves_out_every_kind_of_server() -> None:
    """Its expression names each marker of a server, so that none is started."""
    project = tomllib.loads((dev.ROOT / "pyproject.toml").read_text())["tool"]
    markers = project["pytest"]["ini_options"]["markers"]
    servers = {name for name, _, text in (m.partition(":") for m in markers) if "server" in text}

    command = project["poe"]["tasks"]["check-memory"]["cmd"]
    assert servers == {"age", "nats", "postgres", "redis", "s3"}
    assert all(f"not {name}" in command for name in servers)
