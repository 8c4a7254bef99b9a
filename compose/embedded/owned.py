"""The common part of embedded servers of every kind: one owner, one directory, one port, one URL.

A data directory is used by one process at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from compose.embedded.errors import DataDirInUseError, EmbeddedServerMissingError, ServerFailedError
from compose.embedded.server import STOP_TIMEOUT_S, ProcessSpec, Server, free_port, is_alive

_LOCK_FILE = "lock"
_POLL_S = 0.02
_LIVE_HOLDER_GRACE_S = 0.5
"""A probe holds the lock for microseconds: one refusal is no proof of a holder."""
_DEAD_HOLDER_GRACE_S = 20.0
"""The server of a killed process takes this long at most to end in order."""


_START_TRIES = 5
_PORT_RELEASE_TIMEOUT_S = 10.0
_RETRY_PAUSE_S = 0.1
# What a start meets while a killed predecessor has not gone yet, or when a port was taken.
_PASSING_TROUBLES = ("address already in use", "pre-existing shared memory block")


class Holder(NamedTuple):
    """The holder of a data directory, and its server's URL (None while it starts)."""

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
        self.fd = _acquire(data_dir)
        """The descriptor that a server must inherit."""
        self.publish(None)

    def publish(self, url: str | None) -> None:
        """Publish the server's URL to other processes; None: it does not answer now."""
        text = json.dumps({"pid": os.getpid(), "url": url})
        os.pwrite(self.fd, text.encode(), 0)
        os.ftruncate(self.fd, len(text.encode()))

    def release(self) -> None:
        """Give the directory back; a second call does nothing."""
        if self.fd >= 0:
            os.ftruncate(self.fd, 0)
            os.close(self.fd)
            self.fd = -1


def holder_of(data_dir: Path) -> Holder | None:
    """Return the process that uses the directory now; None if there is none.

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
    # The file names a server and its password: no other user may read it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The instructions to run a server of one kind over a data directory that was made ready for it.

    Attributes:
        data_dir: What the server writes to; nothing of it is elsewhere.
        url: What clients connect to, with user and password where there are any, and ``{port}``.
        command: What starts the server on 127.0.0.1; the port comes behind its last argument.
        is_ready: Whether this very process (pid, port) answers; errors as in `Server.wait_ready` mean
            "not yet".
        store: A folder that the server does not make by itself; it is made where it is missing.
    """

    data_dir: Path
    url: str
    command: ProcessSpec
    is_ready: Callable[[int, int], bool]
    store: Path | None = None


class EmbeddedServer:
    """A server that this process owns; `start_postgres`, `start_nats`, `start_valkey` make one.

    The port stays the same over `stop`, `kill`, `start` and `restart`, so clients can reconnect.
    All methods block; from a coroutine call them by `asyncio.to_thread`. As a context manager it
    closes at the end of the block.
    """

    def __init__(self, recipe: Recipe, lock: DataDirLock) -> None:
        self._recipe = recipe
        self._lock = lock
        self._server, self.port = _start_on_some_port(recipe, lock)
        lock.publish(self.url)

    @property
    def url(self) -> str:
        """The URL for clients; it holds the password."""
        return self._recipe.url.format(port=self.port)

    @property
    def data_dir(self) -> Path:
        """The directory that holds all that the server writes."""
        return self._recipe.data_dir

    @property
    def log(self) -> Path:
        """The file that the server writes its log to."""
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
        """Shut down in order, ending all sessions; after `timeout` seconds kill.

        The data directory stays ours, so `start` works; `close` gives it back.
        """
        self._lock.publish(None)
        self._server.stop(timeout)

    def kill(self) -> None:
        """SIGKILL every process of the server: what a crash of the machine's software is like."""
        self._lock.publish(None)
        self._server.kill()

    def start(self) -> None:
        """Start again on the same port; a no-op while it runs.

        Raises:
            ServerFailedError: the port is taken for good, or recovery failed.
        """
        if self.is_running:
            return
        deadline = time.monotonic() + _PORT_RELEASE_TIMEOUT_S
        while True:
            try:
                self._server = _start_on_port(self._recipe, self._lock, self.port)
                break
            except ServerFailedError as exc:
                if not _is_passing(exc) or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_PAUSE_S)
        self._lock.publish(self.url)

    def restart(self) -> None:
        """Stop in order and start on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop for good and give the data directory back; its content stays."""
        if self._lock.fd >= 0:
            self.stop()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def start_owned(data_dir: Path, make_ready: Callable[[Path], Recipe]) -> EmbeddedServer:
    """A running server over `data_dir`, which `make_ready` prepares while no other process may use it.

    Raises:
        DataDirInUseError: another process, named in the error, uses the directory.
        ServerFailedError: the server did not start; the tail of its log is in the error.
    """
    data_dir = data_dir.absolute()
    lock = DataDirLock(data_dir)
    try:
        return EmbeddedServer(make_ready(data_dir), lock)
    except BaseException:
        lock.release()
        raise


def url_if_running(
    data_dir: Path, *, timeout: float = 30.0, given_up: threading.Event | None = None
) -> str | None:
    """The URL of the server that some process runs over `data_dir`, or None when none does.

    Blocks up to `timeout` seconds while one is just starting, but not once `given_up` is set.

    Raises:
        ServerFailedError: the directory is held, but its server is not up in `timeout` seconds.
    """
    given_up = given_up or threading.Event()
    deadline = time.monotonic() + timeout
    while (holder := holder_of(data_dir.absolute())) is not None and not given_up.is_set():
        if holder.url is not None:
            return holder.url
        if time.monotonic() > deadline:
            problem = f"process {holder.pid} holds {data_dir} but runs no server"
            raise ServerFailedError("embedded server", problem, "")
        given_up.wait(_RETRY_PAUSE_S)
    return None


def log_file(data_dir: Path) -> Path:
    """Return the log file of the server over this directory."""
    return data_dir / "server.log"


def package_folder(server: str, *, wheel: str, package: str | None = None) -> Path:
    """Return the folder of a wheel's package that holds a server. The package is not imported.

    Its name is the wheel's unless it is given.

    Raises:
        EmbeddedServerMissingError: It is not installed.
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


def _is_passing(exc: ServerFailedError) -> bool:
    """Return True if the same start may succeed a moment later."""
    return any(trouble in exc.log_tail.lower() for trouble in _PASSING_TROUBLES)
