"""Every command, when what it needs is not there: one line with the remedy, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose._cli import run
from compose._commands.output import Exit
from tests.unit.test_help import COMMANDS

NOWHERE = "postgresql://u:hidden-word@127.0.0.1:1/d"
NO_NATS = "nats://u:hidden-word@127.0.0.1:1"
BUNDLE = str(Path(__file__).with_name("waiting_run.json"))
FLOW = str(Path(__file__).parents[3] / "docs" / "graphs" / "refund.json")
ORDERS: dict[str, list[str]] = {
    "send": ["desk/a", "{}"],
    "ask": ["desk/a", "{}"],
    "chat": ["tests.system.agents:TYPES", "--message", "hi"],
    "audit list": [],
    "tokens create": ["web"],
    "tokens list": [],
    "tokens revoke": ["web"],
    "publish": ["news", "{}"],
    "follow": ["desk/a", "news"],
    "unfollow": ["desk/a", "news"],
    "followers": ["news"],
    "hosts": [],
    "trace": ["r"],
    "export": ["r"],
    "migrate": [],
    "doctor": [],
    "runs list": [],
    "runs show": ["r"],
    "runs log": ["r"],
    "runs events": ["r"],
    "runs tree": ["r"],
    "runs cancel": ["r"],
    "runs signal": ["r", "go"],
    "runs resolve": ["r", "0", "--retry"],
    "runs retry": ["r"],
    "runs fork": ["r", "--at", "0"],
    "runs redrive": ["r"],
    "runs sweep": ["--older-than", "1d"],
    "agents list": [],
    "agents inbox": ["desk/a"],
    "agents state": ["desk/a"],
    "agents forget": ["desk/a"],
    "history list": ["desk/a"],
    "history show": ["desk/a"],
    "history export": ["desk/a", "--session", "s", "-o", "out.jsonl"],
    "sessions list": [],
    "sessions show": ["s"],
    "sessions nodes": ["s"],
    "sessions switch": ["s", "node"],
    "sessions delete": ["s", "--yes"],
    "sessions export": ["s", "-o", "out.jsonl"],
    "graphs list": ["billing"],
    "graphs show": ["r"],
    "graphs ledger": ["r"],
    "graphs verify": ["r"],
    "graphs start": ["billing", "refund"],
    "graphs resume": ["r", "key"],
    "graphs emit": ["paid"],
    "graphs cancel": ["r"],
    "graphs pause": ["r"],
    "graphs resume-run": ["r"],
    "graphs steer": ["r", "hi"],
    "graphs limits": ["r", "{}"],
    "graphs snapshot": ["r", "x"],
    "graphs snapshots": ["billing"],
    "graphs delete-snapshot": ["billing", "x"],
    "graphs export": ["r", "-o", "out.json"],
    "graphs import": ["billing", BUNDLE],
    "graphs restore": ["billing", '{"snapshot_id": "x", "run_id": "r"}'],
    "flows install": [FLOW],
    "flows list": [],
    "flows show": ["refund"],
    "flows remove": ["refund"],
    "memory list": [],
    "memory show": ["units", "--about", "user:7"],
    "memory forget": ["units", "--about", "user:7"],
    "erase": ["--tenant", "acme", "--yes"],
    "context": ["desk/a"],
    "usage": [],
    "approvals list": [],
    "approvals approve": ["x"],
    "approvals deny": ["x"],
    "schedules create": ["x", "desk/a", "{}", "--cron", "* * * * *"],
    "schedules list": [],
    "schedules show": ["x"],
    "schedules pause": ["x"],
    "schedules resume": ["x"],
    "schedules trigger": ["x"],
    "schedules delete": ["x"],
    "limits list": [],
    "limits set": ["type:desk", "--max-concurrent", "1"],
    "limits delete": ["type:desk"],
    "cleanup artifacts": [],
    "cleanup tasks": ["."],
    "indexes list": [],
    "indexes build": [],
    "indexes drop": ["documents", "x", "--tenant", "acme"],
    "dlq list": [],
    "dlq show": ["1"],
    "dlq redrive": ["1"],
    "dlq discard": ["1", "--export", "out.jsonl"],
}
"""By command: what to say so that only the server is missing."""
WITHOUT_DATABASE = {
    "demo",
    "dev",
    "host",
    "describe",
    "replay",
    "completion",
    "env",
    *(f"flows {verb}" for verb in ("check", "draw", "schema", "import", "pack")),
    *(
        f"graphs {verb}"
        for verb in ("inspect", "replay", "store-list", "store-export", "store-import")
    ),
    "mcp-worker",
    "nats-config",
    "serve",
    "tap",
}
"""What needs none, starts its own, or waits for it."""


def test_each_command_is_tried() -> None:
    """None is forgotten."""
    assert {" ".join(words) for words in COMMANDS} == ORDERS.keys() | WITHOUT_DATABASE


@pytest.mark.parametrize("name", ORDERS)
def test_a_database_that_does_not_answer_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, the remedy, no stack trace, no password, nothing on standard output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALLBOARD_START_WAIT_S", "0.05")
    code = run([*name.split(), *ORDERS[name], "--postgres-url", NOWHERE])
    out, err = capsys.readouterr()

    assert (code, "Traceback" in out + err) == (Exit.UNREACHABLE, False), err
    assert "127.0.0.1:1" in out + err
    assert "hidden-word" not in out + err
    assert name == "doctor" or (out == "" and len(err.splitlines()) == 1), err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["tap"], ["ask", "desk/a", "{}"]])
def test_a_broker_that_does_not_answer_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As with the database."""
    code = run(
        [*arguments, "--nats-url", NO_NATS, *(["--timeout", "1"] if len(arguments) > 1 else [])]
    )
    out, err = capsys.readouterr()

    assert (code, out) == (Exit.UNREACHABLE, ""), err
    assert "127.0.0.1:1" in err
    assert "hidden-word" not in err
    assert "Traceback" not in err
