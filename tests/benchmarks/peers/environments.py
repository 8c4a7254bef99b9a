"""Environments of peers, apart from this project's: each is made once, in the machine's temporary folder."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
VARIABLE: Final = "CALLBOARD_PEERS"
"""Environment variable with the path of a Python that has the packages of all peers."""
SHOWN: Final = 400
"""Characters of an error's end that are printed."""


class PeerMissingError(Exception):
    """A peer cannot be fetched, or does not run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A program to compare with.

    Attributes:
        name: Its name.
        pins: The packages, each of one version.
        alone: True: without the packages that it requires, which the compared part does not import.
    """

    name: str
    pins: tuple[str, ...]
    alone: bool = False

    @property
    def title(self) -> str:
        """The name and versions of what is compared."""
        return ", ".join(pin.replace("==", " ") for pin in self.pins)


_LANGGRAPH: Final = (
    "langgraph==1.2.24",
    "langgraph-checkpoint-postgres==3.2.0",
    "psycopg[binary]==3.3.9",
    "uvloop==0.23.0",
)
ABSTRACTRUNTIME: Final = Peer(name="abstractruntime", pins=("abstractruntime==0.13.0",), alone=True)
LANGGRAPH: Final = Peer(name="langgraph", pins=_LANGGRAPH)
AEGRA: Final = Peer(
    name="aegra", pins=("aegra-api==0.6.0", *_LANGGRAPH, "greenlet==3.2.4", "httptools==0.9.0")
)


def python_of(peer: Peer, folder: Path | None = None) -> Path:
    """Return the Python of a peer's environment, which is made by the first call on this machine.

    Args:
        peer: The peer.
        folder: The folder of environments. None: the machine's temporary folder.

    Raises:
        PeerMissingError: The packages cannot be fetched.
    """
    if setting := os.environ.get(VARIABLE):
        return Path(setting)
    digest = hashlib.sha256(repr((peer, sys.version_info[:3])).encode()).hexdigest()[:12]
    name = f"callboard-peer-{peer.name}-{digest}-{getpass.getuser()}"
    environment = (folder or Path(tempfile.gettempdir())) / name
    if not environment.exists():
        partial = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=environment.parent))
        try:
            for command in commands(peer, partial):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise PeerMissingError(f"{' '.join(peer.pins)}: {done.stderr[-SHOWN:]}")
            partial.rename(environment)
        except OSError:
            if not environment.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return environment / "bin" / "python"


def commands(peer: Peer, environment: Path) -> list[list[str]]:
    """Return the commands that make an environment: by uv if it is there, else by pip."""
    python = str(environment / "bin" / "python")
    install = ["pip", "--python", python, "install", "--quiet"]
    if importlib.util.find_spec("uv") is not None:
        install = ["uv", "pip", "install", "--quiet", "--python", python]
    alone = ["--no-deps"] if peer.alone else []
    return [
        [sys.executable, "-m", "venv", "--without-pip", str(environment)],
        [sys.executable, "-m", *install, *alone, *peer.pins],
    ]


def without_ours() -> dict[str, str]:
    """Return the environment variables of this process without those that lead to this project's modules."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}


async def played(peer: Peer, script: str, *arguments: str) -> str:
    """Return the last line that a script beside this one prints under a peer's Python.

    Raises:
        PeerMissingError: The packages cannot be fetched, or the script fails.
    """
    python = await asyncio.to_thread(python_of, peer)
    done = await asyncio.to_thread(
        subprocess.run,
        [str(python), "-I", str(HERE / script), *arguments],
        env=without_ours(),
        capture_output=True,
        text=True,
        check=False,
    )
    return last_line(peer, done)


def last_line(peer: Peer, done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a script printed.

    Raises:
        PeerMissingError: The script failed, or printed nothing.
    """
    lines: list[Any] = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise PeerMissingError(f"{peer.title}: {done.stderr.strip()[-SHOWN:]}")
    return str(lines[-1])
