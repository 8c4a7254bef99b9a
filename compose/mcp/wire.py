"""Standard streams reserved for MCP messages. Other output of the process goes to standard error."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, redirect_stdout
from typing import Any, Final

import anyio

MAX_LINE_BYTES: Final = 1024 * 1024
"""Maximum number of bytes of one message."""
_log = logging.getLogger("callboard.mcp")


class InputLines:
    """The lines of standard input, read without a thread. `end` ends the iteration, like the end of the input.

    A line that is longer than the limit is dropped and logged.
    """

    def __init__(self, reader: asyncio.StreamReader, pipe: asyncio.ReadTransport) -> None:
        self._reader, self._pipe = reader, pipe

    def end(self) -> None:
        """Stop the reading of further lines."""
        self._pipe.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self._line():
            if len(line) <= MAX_LINE_BYTES:
                yield line.decode(errors="replace")
            else:
                _log.warning("mcp.line_too_long", extra={"limit_bytes": MAX_LINE_BYTES})

    async def _line(self) -> bytes:
        """Return the next line, cut to one byte more than the limit; empty at the end of the input."""
        line = bytearray()
        while True:
            try:
                piece, is_whole = await self._reader.readuntil(b"\n"), True
            except asyncio.IncompleteReadError as exc:
                piece, is_whole = exc.partial, True
            except asyncio.LimitOverrunError as exc:
                piece, is_whole = await self._reader.read(exc.consumed), False
            line += piece[: MAX_LINE_BYTES + 1 - len(line)]
            if is_whole:
                return bytes(line)


@asynccontextmanager
async def messages() -> AsyncIterator[tuple[InputLines | None, Any, Any]]:
    """Yield the lines of the input, or None if it is a file; and input and output for the SDK.

    Meanwhile descriptor 1 is standard error and descriptor 0 is the null device, in this process and in its
    child processes. Their output is therefore not mixed with messages, and they read no messages.
    """
    printed = sys.stdout
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, null)
        kept = stack.enter_context(_instead(0, null))
        wire = stack.enter_context(_instead(1, 2))
        stack.callback(printed.flush)  # before descriptor 1 is restored
        stack.enter_context(redirect_stdout(sys.stderr))
        out = anyio.wrap_file(os.fdopen(wire, "w", encoding="utf-8", newline="", closefd=False))
        if not _can_be_awaited(kept):
            file = os.fdopen(kept, encoding="utf-8", errors="replace", closefd=False)
            yield None, anyio.wrap_file(file), out
            return
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(kept), "rb", buffering=0)
        )
        stack.callback(pipe.close)
        lines = InputLines(reader, pipe)
        yield lines, lines, out


def _can_be_awaited(descriptor: int) -> bool:
    """Return whether an event loop can wait for a descriptor. It cannot wait for a file, and need not."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


@contextmanager
def _instead(descriptor: int, other: int) -> Iterator[int]:
    """Replace a descriptor by another one inside the context; yield a copy of the original."""
    kept = os.dup(descriptor)
    os.dup2(other, descriptor)
    try:
        yield kept
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
