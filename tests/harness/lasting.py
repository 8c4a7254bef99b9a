"""Connections to PostgreSQL that survive a test: a new one costs the server more than most tests do.

A server process is forked, reads the catalog, and compiles and plans each function that is called.
A connection that a store closes is kept, as by a pool, and the next store with the same settings
gets it. A connection belongs to its event loop, so the loop survives its tests, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from typing_extensions import override

from persistence._postgres.connection.link import TypedConnection
from persistence.errors import DRIVER_ERRORS
from tests.harness.servers.postgres import OBSERVER

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST: Final = 24
"""Connections that a loop keeps at most."""

_ONE_PLAN: Final = {"plan_cache_mode": "force_generic_plan"}
"""Else a statement is planned for each of its first five executions, and few tests have more."""

_open = asyncpg.connect
_connections: dict[asyncio.AbstractEventLoop, _Kept] = {}
_loops: list[LastingLoop] = []


class LastingLoop(asyncio.SelectorEventLoop):
    """An event loop in which one test after the other runs.

    To its tests it is closed when they end: none of their calls, generators and threads is left in
    it.
    """

    def __init__(self) -> None:
        super().__init__()
        keep_in(self)
        _loops.append(self)

    @override
    def close(self) -> None:
        """Drop what the test left, and continue."""
        for handle in [*self._scheduled, *self._ready]:  # type: ignore[attr-defined]
            handle.cancel()
        self.set_exception_handler(None)
        self.set_task_factory(None)
        # The runner has ended those of the test; the next one has its own.
        self._asyncgens_shutdown_called = False
        self._executor_shutdown_called = False
        self._default_executor = None

    def end(self) -> None:
        """Close the kept connections, and the loop."""
        _loops.remove(self)
        self.run_until_complete(let_go(self))
        super().close()


@functools.cache
def lasting_loop() -> LastingLoop:
    """Return the one loop of the folders whose tests share their schemas."""
    return LastingLoop()


def keep_in(loop: asyncio.AbstractEventLoop) -> None:
    """Keep connections of this loop until `let_go`."""
    _connections[loop] = _Kept()


async def let_go(loop: asyncio.AbstractEventLoop) -> None:
    """Close the kept connections of this loop."""
    await _connections.pop(loop).close()


class _Kept:
    """Unused connections, the last used one at the end."""

    def __init__(self) -> None:
        self._free: list[_KeptConnection] = []

    async def connect(self, url: str, settings: dict[str, str], **options: Any) -> _KeptConnection:
        """Return a connection with these settings; open one if there is none."""
        opened_with = (url, {**_ONE_PLAN, **settings, "application_name": OBSERVER})
        while free := [
            connection for connection in self._free if connection.opened_with == opened_with
        ]:
            self._free.remove(free[-1])
            with contextlib.suppress(*DRIVER_ERRORS):
                return await free[-1].with_name(settings["application_name"])
        options["connection_class"] = _KeptConnection
        opened: _KeptConnection = await _open(url, server_settings=opened_with[1], **options)
        opened.home, opened.opened_with = self, opened_with
        return await opened.with_name(settings["application_name"])

    async def give_back(self, connection: _KeptConnection) -> None:
        """Keep this connection; above the limit, close the one that was unused for the longest time."""
        self._free.append(connection)
        if len(self._free) > MOST:
            await self._free.pop(0).end()

    async def close(self) -> None:
        """Close them all."""
        while self._free:
            await self._free.pop().end()


class _KeptConnection(TypedConnection):
    """A connection that is reset when it is closed, and used again."""

    __slots__ = ("home", "opened_with")
    home: _Kept
    opened_with: tuple[str, dict[str, str]]

    async def with_name(self, name: str) -> _KeptConnection:
        """Return it as that of a program of this name."""
        try:
            await self.execute(f"set application_name = '{name}'")
        except BaseException:
            self.terminate()
            raise
        return self

    @override
    async def close(self, *, timeout: float | None = None) -> None:
        """Return it to the pool; its session's state ends, settings and name included."""
        try:
            await self.reset(timeout=timeout)
        except BaseException:
            self.terminate()
            raise
        self._termination_listeners.clear()  # type: ignore[attr-defined]
        await self.home.give_back(self)

    async def end(self) -> None:
        """Close it."""
        await super().close()


@contextlib.contextmanager
def kept_connections(url: str) -> Iterator[None]:
    """Keep connections to this URL for the lasting loops; close all of them at the end."""

    async def connect(dsn: str, **options: Any) -> Any:
        connections = _connections.get(asyncio.get_running_loop())
        is_ours = dsn == url and options.get("connection_class") is TypedConnection
        if is_ours and connections is not None:
            return await connections.connect(dsn, options.pop("server_settings"), **options)
        return await _open(dsn, **options)

    asyncpg.connect = connect  # type: ignore[assignment]
    try:
        yield
    finally:
        asyncpg.connect = _open
        while _loops:
            _loops[-1].end()
