"""The common part of all embedded servers: each has one owner, one directory, one port and one URL.

Only one process at a time owns a data directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from actors.errors import ContractError
from compose._embedded.errors import (
    DataDirInUseError,
    EmbeddedServerMissingError,
    ServerFailedError,
)
from compose._embedded.server import STOP_TIMEOUT_S, ProcessSpec, Server, free_port, is_alive

_LOCK_FILE = "lock"
_OWNER_FILE = "lock.owner"
_POLL_S = 0.02
_LIVE_HOLDER_GRACE_S = 0.5
"""Longest wait in seconds for the lock of a live process. A probe holds the lock for microseconds only."""
_DEAD_HOLDER_GRACE_S = 20.0
"""Longest wait in seconds for the shutdown of a server whose owner was killed."""
_CONNECT_TIMEOUT_S = 1.0
_START_TRIES = 5
_PORT_RELEASE_TIMEOUT_S = 10.0
_RETRY_PAUSE_S = 0.1
# Log texts of starts that fail because a killed server has not ended yet, or because the port was taken.
_PASSING_TROUBLES = ("address already in use", "pre-existing shared memory block")


class Holder(NamedTuple):
    """The process that owns a data directory, and the URL of its server (None while the server starts).

    `is_live` is False if the owner was killed. On Linux its server is then shutting down.
    """

    pid: int
    url: str | None
    is_live: bool


class DataDirLock:
    """The lock of one data directory.

    The kernel holds the lock (`flock`), and releases it when the processes with its file descriptor end. The
    server inherits the descriptor. So after a kill -9 of the owner the directory stays locked until the
    server has ended too. The owner has a second lock, which the server does not inherit, so that others see
    the owner's end. Its pid does not show it, because another process may get the same pid.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.fd: int = _acquire(data_dir)
        """The descriptor that a server must inherit."""
        # First, so that no other process takes the URL of a killed owner for that of a live one.
        self.publish(None)
        self._owner_fd = _open_lock(data_dir / _OWNER_FILE)
        fcntl.flock(self._owner_fd, fcntl.LOCK_EX)

    def publish(self, url: str | None) -> None:
        """Publish the server's URL to other processes, or None if the server does not answer now."""
        text = json.dumps({"pid": os.getpid(), "url": url, "has_owner_lock": True})
        os.pwrite(self.fd, text.encode(), 0)
        os.ftruncate(self.fd, len(text.encode()))

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self.fd >= 0:
            os.ftruncate(self.fd, 0)
            os.close(self.fd)
            os.close(self._owner_fd)
            self.fd = -1


def holder_of(data_dir: Path) -> Holder | None:
    """Return the process that owns the directory now, or None.

    The pid is 0 if the owner has not written its pid yet.
    """
    if not _is_locked(data_dir / _LOCK_FILE):
        return None
    return _read_holder(data_dir) or Holder(0, None, is_live=True)


def check_data_dir(data_dir: Path) -> None:
    """Check that servers can have their data in a folder of this name.

    Raises:
        ContractError: The name has a line break or a NUL, which PostgreSQL's programs refuse.
    """
    if not {"\0", "\n", "\r"}.isdisjoint(str(data_dir)):
        msg = f"data directory {str(data_dir)!r} has a line break or a NUL in its name"
        raise ContractError(f"{msg}: choose a folder without one")


def kept_password(data_dir: Path) -> str:
    """Return the random password of the directory's server. The first call creates it."""
    file = data_dir / "password"
    if not file.exists() or not file.read_text():
        write_private(file, secrets.token_hex(16))
    return file.read_text()


def write_private(file: Path, text: str) -> None:
    """Write a file with the mode 0600. The file has all its text or does not exist, even after a crash."""
    partial = file.with_name(f"{file.name}.partial")
    # A file that a crash has left may have another mode.
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.rename(file)


def _acquire(data_dir: Path) -> int:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The file has the server's URL with the password, so that no other user may read it.
    fd = _open_lock(data_dir / _LOCK_FILE)
    started_at = time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        holder = _read_holder(data_dir)
        is_live = holder is not None and holder.is_live
        grace_s = _LIVE_HOLDER_GRACE_S if is_live else _DEAD_HOLDER_GRACE_S
        if time.monotonic() - started_at > grace_s:
            os.close(fd)
            raise DataDirInUseError(data_dir, holder.pid if holder else None)
        time.sleep(_POLL_S)


def _read_holder(data_dir: Path) -> Holder | None:
    try:
        data = json.loads((data_dir / _LOCK_FILE).read_text())
        pid, url = int(data["pid"]), data["url"]
    # Read without the lock: the owner may be writing the file now, or has just released it.
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if data.get("has_owner_lock"):  # releases before the owner's lock wrote only the pid
        return Holder(pid, url, is_live=_is_locked(data_dir / _OWNER_FILE))
    return Holder(pid, url, is_live=is_alive(pid))


def _open_lock(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_locked(file: Path) -> bool:
    try:
        fd = os.open(file, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The instructions to run a server over a prepared data directory.

    Attributes:
        data_dir: The only directory to which the server writes.
        url: URL for clients, with user and password if the server needs them, and with ``{port}``.
        command: The command that starts the server on 127.0.0.1. The port is appended as its last argument.
        is_ready: Function that returns True if the process `pid` answers on the port. Errors as in
            `Server.wait_ready` mean "not yet".
        store: A folder that the server does not create. It is created if it is missing.
    """

    data_dir: Path
    url: str
    command: ProcessSpec
    is_ready: Callable[[int, int], bool]
    store: Path | None = None


class EmbeddedServer:
    """A server that this process owns, made by `start_postgres`, `start_nats` or `start_valkey`.

    The port stays the same after `stop`, `kill`, `start` and `restart`, so that clients can reconnect.
    All methods block. A coroutine calls them by `asyncio.to_thread`. As a context manager the server is closed
    at the end of the block.
    """

    port: int

    def __init__(self, recipe: Recipe, lock: DataDirLock) -> None:
        self._recipe = recipe
        self._lock = lock
        self._server, self.port = _start_on_some_port(recipe, lock)
        lock.publish(self.url)

    @property
    def url(self) -> str:
        """The URL for clients, with the password."""
        return self._recipe.url.format(port=self.port)

    @property
    def data_dir(self) -> Path:
        """The only directory to which the server writes."""
        return self._recipe.data_dir

    @property
    def log(self) -> Path:
        """The server's log file."""
        return log_file(self.data_dir)

    @property
    def pid(self) -> int:
        """The process id of the server's first process."""
        return self._server.pid

    @property
    def is_running(self) -> bool:
        """True if the server's first process has not ended."""
        return self._server.is_running

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Shut the server down, which ends all sessions. Kill it after `timeout` seconds.

        The process keeps the lock of the data directory, so that `start` works. `close` releases the lock.
        """
        self._lock.publish(None)
        self._server.stop(timeout)

    def kill(self) -> None:
        """Send SIGKILL to every process of the server, as in a crash."""
        self._lock.publish(None)
        self._server.kill()

    def start(self) -> None:
        """Start the server again on the same port. Do nothing if it runs.

        Raises:
            ServerFailedError: The port is not free after 10 s, or the server did not start.
        """
        if self.is_running:
            return
        deadline = time.monotonic() + _PORT_RELEASE_TIMEOUT_S
        while True:
            try:
                self._server = _start_on_port(self._recipe, self._lock, self.port)
                break
            except ServerFailedError as exc:
                # A killed server may hold its port, or its shared memory, a moment longer.
                if not _is_passing(exc) or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_PAUSE_S)
        self._lock.publish(self.url)

    def restart(self) -> None:
        """Shut the server down, and start it on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server for good, and release the lock of the data directory. The data stays."""
        if self._lock.fd >= 0:
            self.stop()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def start_owned(data_dir: Path, make_ready: Callable[[Path], Recipe]) -> EmbeddedServer:
    """Lock `data_dir`, call `make_ready` to prepare it, start its server and return the server.

    Raises:
        ContractError: The name of the directory has a line break or a NUL.
        DataDirInUseError: Another process, which the error names, uses the directory.
        ServerFailedError: The server did not start. The error has the end of its log.
    """
    check_data_dir(data_dir)
    data_dir = data_dir.absolute()
    lock = DataDirLock(data_dir)
    try:
        return EmbeddedServer(make_ready(data_dir), lock)
    # Also a keyboard interrupt: this process would keep the directory locked while it lives.
    except BaseException:
        lock.release()
        raise


def url_if_running(
    data_dir: Path, *, timeout: float = 30.0, given_up: threading.Event | None = None
) -> str | None:
    """Return the URL of the server that some process runs over `data_dir`, or None if no process owns it.

    The call blocks up to `timeout` seconds while a server starts, does not accept connections, or shuts down
    because its owner was killed, unless `given_up` is set.

    Raises:
        ServerFailedError: A process owns the directory, but its server does not answer after `timeout` seconds.
    """
    given_up = given_up or threading.Event()
    deadline = time.monotonic() + timeout
    while (holder := holder_of(data_dir.absolute())) is not None and not given_up.is_set():
        # On Linux the server of a killed owner is about to end. Elsewhere it runs on.
        runs_on = holder.is_live or sys.platform != "linux"
        if holder.url is not None and runs_on and _accepts(holder.url):
            return holder.url
        if time.monotonic() > deadline:
            problem = f"process {holder.pid} holds {data_dir} but runs no server"
            if not runs_on:
                problem = f"process {holder.pid} has ended, and its server still holds {data_dir}"
            raise ServerFailedError("embedded server", problem, "")
        given_up.wait(_RETRY_PAUSE_S)
    return None


def log_file(data_dir: Path) -> Path:
    """Return the path of the log of a directory's server."""
    return data_dir / "server.log"


def package_folder(server: str, *, wheel: str, package: str | None = None) -> Path:
    """Return the folder of the package in which a wheel has a server, without an import of the package.

    The package has the name of the wheel unless `package` is given.

    Raises:
        EmbeddedServerMissingError: The package is not installed.
    """
    spec = importlib.util.find_spec(package or wheel.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerMissingError(server, f"{wheel} is not installed")
    return Path(spec.submodule_search_locations[0])


def _start_on_some_port(recipe: Recipe, lock: DataDirLock) -> tuple[Server, int]:
    for tries_left in reversed(range(_START_TRIES)):
        port = free_port()
        try:
            return _start_on_port(recipe, lock, port), port
        except ServerFailedError as exc:
            # Another program may have taken the port between its choice and the server's start.
            if not _is_passing(exc) or not tries_left:
                raise
            time.sleep(_RETRY_PAUSE_S)
    raise AssertionError


def _start_on_port(recipe: Recipe, lock: DataDirLock, port: int) -> Server:
    if recipe.store is not None:
        recipe.store.mkdir(exist_ok=True, mode=0o700)
    command = recipe.command
    argv = [*command.argv, str(port)]
    server = Server(replace(command, argv=argv, keep_open=[lock.fd]))
    server.wait_ready(lambda: recipe.is_ready(server.pid, port))
    return server


def _accepts(url: str) -> bool:
    """Return True if a server accepts connections at the loopback port of a URL."""
    port = urlsplit(url).port or 0
    try:
        socket.create_connection(("127.0.0.1", port), _CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _is_passing(exc: ServerFailedError) -> bool:
    """Return True if the same start may succeed a moment later, because its cause passes."""
    return any(trouble in exc.log_tail.lower() for trouble in _PASSING_TROUBLES)
