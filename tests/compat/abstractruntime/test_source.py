"""The source's own tests pass over our graphs, on both drivers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.compat.abstractruntime.archive import UnfetchedError, unpacked
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from tests.harness.servers import TestPostgres

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
FILES: Final = (HERE / "files.txt").read_text(encoding="utf-8").split()
"""Those of its files that ours is made for so far."""
PASSED: Final = 276
"""Cases that pass in all, so that none gets lost."""
LEFT_OUT: Final = (
    # A pause is a mark, not a wait (docs/adr/0027-a-pause-is-a-mark.md).
    "test_pause_resume.py::test_manual_pause_and_resume_running_run",
)
"""Cases of these files that are not played."""
ON_ACTORS: Final = tomllib.loads((HERE / "actors.toml").read_text(encoding="utf-8"))
PASSED_ON_ACTORS: Final = 61
"""Cases that start a run and pass on the actor driver."""
OPTIONS: Final = (
    "-q --noconftest -c /dev/null -W ignore -p no:randomly -p no:cacheprovider -p no:schemathesis"
    " --rootdir ."
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of its tests; skip where it cannot be fetched."""
    folder = tmp_path_factory.mktemp("source")
    try:
        return unpacked(folder) / "tests"
    except UnfetchedError as exc:
        pytest.skip(str(exc))


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.item(479)
def test_the_tests_of_the_source_pass(source: Path) -> None:
    """All cases of these files, as many as before."""
    left_out = (f"--deselect={case}" for case in LEFT_OUT)
    done = played(source, *(f"{name}.py" for name in FILES), *left_out)

    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) == PASSED


@pytest.mark.costly
@pytest.mark.item(479)
def test_the_tests_of_the_source_pass_on_actors(source: Path, tmp_path: Path) -> None:
    """In memory, in virtual time: all but those that are listed with the reason, and these fail."""
    check(on_actors(source, tmp_path / "told"))


@pytest.mark.slow
@pytest.mark.item(479)
@pytest.mark.skipif(not IS_SLOW, reason="set CALLBOARD_TEST_SLOW=1: 300 hosts come and go")
def test_the_tests_of_the_source_pass_on_actors_over_postgres(
    source: Path, tmp_path: Path, postgres_server: TestPostgres, schema: str
) -> None:
    """The same cases."""
    rows = {"COMPAT_POSTGRES": postgres_server.url, "COMPAT_SCHEMA": schema}
    check(on_actors(source, tmp_path / "told", **rows))


def on_actors(source: Path, file: Path, **env: str) -> list[dict[str, Any]]:
    """Return how each case of the second mode ended."""
    plugin = "tests.compat.abstractruntime.actor_driver.case_records"
    env |= {"COMPAT_DRIVER": "actors", "COMPAT_TOLD": str(file)}
    done = played(source, "-p", plugin, "--tb=short", *ON_ACTORS["select"], **env)
    assert file.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def check(records: list[dict[str, Any]]) -> None:
    """Compare with what is listed: a case that passes against it is as wrong as one that fails."""
    listed_cases = {case for entry in ON_ACTORS["left_out"] for case in entry["cases"]}
    failed = {record["case"]: record.get("error") for record in records if not record["passed"]}
    lost = {case: error for case, error in failed.items() if case not in listed_cases}
    assert not lost
    assert not listed_cases - failed.keys(), "these pass: take them from the list"
    assert sum(record["passed"] and record["calls"] > 0 for record in records) == PASSED_ON_ACTORS


def played(source: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Return what pytest said of these cases."""
    return subprocess.run(
        [*(sys.executable, "-m", "pytest", *OPTIONS.split()), *args],
        cwd=source,
        env={**os.environ, "PYTHONPATH": f"{HERE / 'shim'}{os.pathsep}{ROOT}", **env},
        capture_output=True,
        text=True,
        check=False,
    )
