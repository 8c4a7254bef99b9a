"""`callboard env` where nothing runs: one line, the remedy, no waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compose._cli import run
from compose._commands.output import Exit

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_folder_without_servers_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says how to start them."""
    code = run(["env", "--data", str(tmp_path / "nothing")])

    out, err = capsys.readouterr()
    assert (code, out) == (Exit.NOT_FOUND, "")
    assert f"no servers run in {tmp_path / 'nothing'}" in err
    assert "callboard host … --data" in err


def test_without_a_folder_it_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By option or by variable."""
    monkeypatch.delenv("CALLBOARD_DATA_DIR", raising=False)
    code = run(["env"])

    assert code == Exit.NOT_FOUND
    assert "give --data DIR, or set CALLBOARD_DATA_DIR" in capsys.readouterr().err
