"""A process of graphs is killed at each persistence point, between each pair of writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.flow_stage import is_doubt
from tests.system.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

POINTS = {
    "files": {
        "half a line written",
        "line written",
        "line synced",
        "file written",
        "file synced",
        "file renamed",
        "ended",
    },
    "sqlite": {"transaction written", "transaction committed"},
}
DRIVER = {"started", "executed", "saved", "resumed"}


def check(outcome: dict[str, Any]) -> bool:
    """Check the second process's outcome; return whether an effect was in doubt."""
    where = f"{outcome['number']} {outcome['point']}"
    done = Counter(outcome["world"])
    main = outcome["runs"]["main"]
    assert outcome["running"] == [], where
    for line, count in done.items():
        run, number, mode = line.split()
        if mode == "at_most_once":
            assert count <= 1, (where, line)
        ends = [
            record
            for record in outcome["ledgers"][run]
            if record["status"] == "completed"
            and (record["effect"] or {}).get("payload", {}).get("n") == int(number)
        ]
        assert len(ends) <= 1, (where, line)
        assert count <= 2, (where, line)
    for records in outcome["ledgers"].values():
        deltas = [record["delta"] for record in records if record["delta"]]
        for branch in (None, *{key for delta in deltas for key in delta.get("branch") or ()}):
            own = [delta for delta in deltas if delta.get("branch") == (branch and [branch])]
            seqs = [delta["seq"] for delta in own if "seq" in delta]
            assert seqs == [*range(len(seqs))], where
            begun = [delta["open"] for delta in own if "open" in delta]
            assert len({*begun}) == len(begun), where
    assert main["status"] == "completed", where
    output = main["output"]
    assert (output["begun"], output["paid"], output["once"]) == (1, {"n": 1}, {"n": 2}), where
    assert output["did"] == {"l": {"n": 4}, "r": {"n": 5}}, where
    assert (output["answer"], output["sub"]["output"]["out"]) == ("yes", {"n": 3}), where
    ear = outcome["runs"]["ear"]
    assert ear["status"] == "completed", where
    assert ear["output"]["out"]["name"] == "paid", where
    assert len(outcome["runs"]) == 3, where
    is_doubted = any(is_doubt(record) for record in outcome["ledgers"]["main"])
    died_in_it = {"started", "executed", *POINTS["files"], *POINTS["sqlite"]}
    assert not is_doubted or outcome["point"] in died_in_it, where
    return is_doubted


@pytest.mark.costly
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.item(391, 398, 404, 414, 415, 421, 441, 442, 443)
@pytest.mark.parametrize("kind", POINTS)
def test_a_run_survives_a_kill_at_every_point(tmp_path: Path, kind: str) -> None:
    """No record is lost, no effect repeated, no run stays RUNNING.

    At-most-once effects happen at most once.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.workflow.dying_graphs", kind, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]

    doubts = [check(outcome) for outcome in outcomes]

    points = Counter(outcome["point"] for outcome in outcomes)
    assert {*points} >= POINTS[kind] | DRIVER
    assert 1 <= sum(doubts) <= 12, sum(doubts)
    assert len(outcomes) > 60
