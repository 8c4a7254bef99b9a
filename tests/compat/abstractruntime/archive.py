"""The sdist of the source, fetched when a test or a benchmark needs it; never a part of this repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
NAME: Final = "abstractruntime-0.13.0"
SHA256: Final = "1d178d5add836877659bd6f6bcf6768eb9aa5e2dc74df0e3174a365babc74e32"


class UnfetchedError(Exception):
    """The archive cannot be fetched here."""


def unpacked(folder: Path) -> Path:
    """Return the folder of the source, unpacked below `folder`; its build never runs.

    `CALLBOARD_ABSTRACTRUNTIME` names an archive that is there already.

    Raises:
        UnfetchedError: It cannot be fetched.
    """
    archive = Path(os.environ.get("CALLBOARD_ABSTRACTRUNTIME", folder / f"{NAME}.tar.gz"))
    if not archive.exists():
        command = "pip download -q --no-deps --no-build-isolation --no-binary abstractruntime -d"
        done = subprocess.run(
            [sys.executable, "-m", *command.split(), str(folder), NAME.replace("-", "==")],
            env={**os.environ, "PYTHONPATH": str(HERE / "backend")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not archive.exists():
            raise UnfetchedError(f"{NAME} cannot be fetched: {done.stderr[-300:]}")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    return folder / "unpacked" / NAME
