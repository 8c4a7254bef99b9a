"""The commands of the README are typed into a shell, and have the documented output."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.harness.slow import IS_SLOW
from tests.unit.documents import ROOT


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_the_four_tours_of_the_readme_work_as_written() -> None:
    """Hosts, asks from any language, topics and traces; and the tour for operators if requested."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    without = ["--without", "node"] if missing else []
    short = [] if IS_SLOW else ["--short"]

    done = subprocess.run(
        [sys.executable, "docs/screens/make.py", "--check", *short, *without],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for scene in (
        "run-a-host-per-node",
        "follow-a-topic-and-publish-to-all-who-do",
        "read-a-conversation-as-a-trace",
    ):
        assert f"{scene}: as shown" in done.stdout
    if missing:
        pytest.skip(f"all of it but Node.js: no {' and no '.join(missing)} on this machine")
