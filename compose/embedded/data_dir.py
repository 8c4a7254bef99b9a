"""A data directory that one process at a time may use."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from compose.embedded.errors import DataDirInUseError
from compose.embedded.server import is_alive

if TYPE_CHECKING:
    from pathlib import Path

_LOCK_FILE = "lock"
_POLL_S = 0.02
_LIVE_HOLDER_GRACE_S = 0.5
"""A probe holds the lock for microseconds: one refusal is no proof of a holder."""
_DEAD_HOLDER_GRACE_S = 20.0
"""The server of a killed process takes this long at most to end in order."""


class Holder(NamedTuple):
    """Who holds a data directory, and where its server answers (None while it starts)."""

    pid: int
    url: str | None


class DataDirLock:
    """The exclusive right to one data directory.

    The lock is the kernel's (`flock`), so it cannot be left behind. The server inherits the file
    descriptor: after a kill -9 of the owner the directory stays locked until the server, too, is
    gone.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._fd = _acquire(data_dir)
        self.publish(None)

    @property
    def fd(self) -> int:
        """The descriptor that a server must inherit."""
        return self._fd

    def publish(self, url: str | None) -> None:
        """Tell other processes where the server answers; None: not now."""
        text = json.dumps({"pid": os.getpid(), "url": url})
        os.pwrite(self._fd, text.encode(), 0)
        os.ftruncate(self._fd, len(text.encode()))

    def release(self) -> None:
        """Give the directory back; a second call does nothing."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def holder_of(data_dir: Path) -> Holder | None:
    """Who uses the directory now; None when nobody does.

    A pid of 0 stands for a holder that has not written its name yet.
    """
    try:
        fd = os.open(data_dir / _LOCK_FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(data_dir) or Holder(0, None)
    finally:
        os.close(fd)
    return None


def kept_password(data_dir: Path) -> str:
    """The random password of the directory's server, made at the first call."""
    file = data_dir / "password"
    if not file.exists() or not file.read_text():
        write_private(file, secrets.token_hex(16))
    return file.read_text()


def write_private(file: Path, text: str) -> None:
    """Write a whole file that only its owner can read: it is there with all its text or not."""
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.rename(file)


def _acquire(data_dir: Path) -> int:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The file names a server and its password: nobody else may read it.
    fd = os.open(data_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    started = time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        holder = _read(data_dir)
        is_live = holder is not None and is_alive(holder.pid)
        grace_s = _LIVE_HOLDER_GRACE_S if is_live else _DEAD_HOLDER_GRACE_S
        if time.monotonic() - started > grace_s:
            os.close(fd)
            raise DataDirInUseError(data_dir, holder.pid if holder else None)
        time.sleep(_POLL_S)


def _read(data_dir: Path) -> Holder | None:
    try:
        said = json.loads((data_dir / _LOCK_FILE).read_text())
        return Holder(int(said["pid"]), said["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
