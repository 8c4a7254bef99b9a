"""What embedded servers of every kind have in common: one owner, one directory, one port, one URL."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self

from compose.embedded.data_dir import DataDirLock, holder_of
from compose.embedded.errors import ServerFailedError
from compose.embedded.server import STOP_TIMEOUT_S, Server, free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from compose.embedded.server import Command

_START_TRIES = 5
_PORT_RELEASE_TIMEOUT_S = 10.0
_RETRY_PAUSE_S = 0.1
# What a start meets while a killed predecessor has not gone yet, or when a port was taken.
_PASSING_TROUBLES = ("address already in use", "pre-existing shared memory block")


class Recipe(Protocol):
    """How one kind of server runs over a data directory that was made ready for it."""

    @property
    def data_dir(self) -> Path:
        """What the server writes to; nothing of it is elsewhere."""
        ...

    def url(self, port: int) -> str:
        """Return what clients connect to, with user and password where there are any."""
        ...

    def command(self, port: int) -> Command:
        """Return what starts the server on this port of 127.0.0.1."""
        ...

    def is_ready(self, pid: int, port: int) -> bool:
        """Whether this very process answers; errors as in `Server.wait_ready` mean "not yet"."""
        ...


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
        """What clients connect to; it holds the password."""
        return self._recipe.url(self.port)

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
        """Whether the server's first process has not ended."""
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def start_owned(data_dir: Path, make_ready: Callable[[Path], Recipe]) -> EmbeddedServer:
    """A running server over `data_dir`, which `make_ready` prepares while nobody else may use it.

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
    """Where the server over this directory writes its log."""
    return data_dir / "server.log"


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
    server = Server(replace(recipe.command(port), keep_open=[lock.fd]))
    server.wait_ready(lambda: recipe.is_ready(server.pid, port))
    return server


def _is_passing(exc: ServerFailedError) -> bool:
    """Whether the same start may succeed a moment later."""
    return any(trouble in exc.log_tail.lower() for trouble in _PASSING_TROUBLES)
