"""The source's own tests pass over our graphs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.compat.abstractruntime.archive import UnfetchedError, unpacked

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
FILES: Final = (HERE / "files.txt").read_text(encoding="utf-8").split()
"""Those of its files that ours is made for so far."""
PASSED: Final = 192
"""Cases that pass in all, so that none gets lost."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of its tests; skip where it cannot be fetched."""
    folder = tmp_path_factory.mktemp("source")
    try:
        return unpacked(folder) / "tests"
    except UnfetchedError as exc:
        pytest.skip(str(exc))


@pytest.mark.slow
@pytest.mark.item(479)
def test_the_tests_of_the_source_pass(source: Path) -> None:
    """All cases of these files, as many as before."""
    options = (
        "-q --noconftest -c /dev/null -W ignore -p no:randomly -p no:cacheprovider --rootdir ."
    )
    done = subprocess.run(
        [*(sys.executable, "-m", "pytest", *options.split()), *(f"{name}.py" for name in FILES)],
        cwd=source,
        env={**os.environ, "PYTHONPATH": f"{HERE / 'shim'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) == PASSED
