"""Turns over HTTP at an aegra server, and at ours."""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from tests.benchmarks.http import DONE, Line, make_session, served, talk
from tests.benchmarks.peers.environments import (
    AEGRA,
    HERE,
    SHOWN,
    PeerMissingError,
    python_of,
    without_ours,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POOLS: Final = {
    "SQLALCHEMY_POOL_SIZE": "40",
    "SQLALCHEMY_MAX_OVERFLOW": "0",
    "LANGGRAPH_MIN_POOL_SIZE": "1",
    "LANGGRAPH_MAX_POOL_SIZE": "40",
}
"""Sizes of aegra's pools. With its own sizes, of 2 and 6, runs at once wait for each other, and time out."""
QUIET: Final = {"LOG_LEVEL": "ERROR", "ENV_MODE": "PRODUCTION"}
UUID_OSSP: Final = {
    "uuid-ossp.control": "default_version = '1.1'\nrelocatable = true\n",
    "uuid-ossp--1.1.sql": (
        "create function uuid_generate_v4() returns uuid language sql as 'select gen_random_uuid()';"
    ),
}
"""Files of an extension, with the part that aegra uses. PostgreSQL's wheel does not have the extension."""
STARTS_S: Final = 60.0
ENDS_S: Final = 10.0
WAYS: Final = {"stream": DONE, "wait": b'"done":true'}
"""The ways to execute a run in one request, and the end of its answer."""


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[str]:
    """Serve a graph that does nothing by aegra, over the database of `url`; yield the server's URL.

    Raises:
        PeerMissingError: The packages cannot be fetched, or the server does not start.
    """
    python = await asyncio.to_thread(python_of, AEGRA)
    env = without_ours() | POOLS | QUIET | {"DATABASE_URL": url}
    with tempfile.TemporaryDirectory(prefix="callboard-aegra-") as folder:
        _keep_extension(Path(folder))
        await _extend(url, Path(folder))
        log = Path(folder) / "log"
        with log.open("wb") as errors:
            server = await asyncio.create_subprocess_exec(
                *(python, "-I", HERE / "aegra_server.py", folder),
                env=env,
                stdout=PIPE,
                stderr=errors,
            )
        assert server.stdout is not None
        try:
            port = (await server.stdout.readline()).decode().strip()
            address = f"http://127.0.0.1:{port}"
            try:
                async with asyncio.timeout(STARTS_S):
                    await turn(await Line.to(address), str(uuid.uuid4()), "wait")
            except (OSError, ValueError, TimeoutError) as exc:
                log_end = log.read_text()[-SHOWN:]
                raise PeerMissingError(f"{AEGRA.title}: {exc!r}: {log_end}") from exc
            yield address
        finally:
            if server.returncode is None:
                server.terminate()
            try:
                async with asyncio.timeout(ENDS_S):
                    await server.communicate()
            except TimeoutError:
                server.kill()
                await server.communicate()


def _keep_extension(folder: Path) -> None:
    extension = folder / "extension"
    extension.mkdir()
    for name, text in UUID_OSSP.items():
        (extension / name).write_text(text)
    folder.chmod(0o755)


async def _extend(url: str, folder: Path) -> None:
    """Let the database of `url` find the extension in a folder, which the server's user can read."""
    connection = await asyncpg.connect(url)
    name = await connection.fetchval("select current_database()")
    await connection.execute(
        f"alter database {name} set extension_control_path = '{folder}:$system'"
    )
    await connection.close()


async def turn(line: Line, thread: str, way: str) -> None:
    """Execute one run of a thread, and read its answer to the end."""
    body = {"assistant_id": "bench", "input": {"text": "turn"}}
    line.ask("POST", f"/threads/{thread}/runs/{way}", body)
    answer = await line.until(WAYS[way])
    if b" 200 OK" not in answer[:32] or b'"done":true' not in answer:
        raise ConnectionError(f"the server says {answer[-SHOWN:]!r}")


async def theirs(address: str, way: str, *, sessions: int, each: int) -> float:
    """Return the turns in a second of so many threads at once, each on a connection that is kept."""

    async def play_thread() -> None:
        line, thread = await Line.to(address), str(uuid.uuid4())
        for _ in range(each):
            await turn(line, thread, way)
        line.close()

    began = time.perf_counter()
    try:
        await asyncio.gather(*(play_thread() for _ in range(sessions)))
    except OSError as exc:
        raise PeerMissingError(f"{AEGRA.title}: {exc}") from exc
    return sessions * each / (time.perf_counter() - began)


async def ours(url: str, *, sessions: int, each: int) -> float:
    """Return the turns in a second of so many sessions at once, each as a stream that is read to its end."""
    async with served(url) as server:
        keys = [f"peers-{number}" for number in range(sessions)]
        for key in keys:
            await make_session(server, key)
        began = time.perf_counter()
        await asyncio.gather(*(talk(server, key, each) for key in keys))
        return sessions * each / (time.perf_counter() - began)
