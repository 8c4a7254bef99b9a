"""Standard input and output, kept for messages alone: whatever else is printed goes to standard error."""

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
"""Of one message."""
_log = logging.getLogger("callboard.mcp")


class InputLines:
    """The lines of standard input, read without a thread: `end` ends them, as the input's own end does.

    A line beyond the limit is dropped.
    """

    def __init__(self, reader: asyncio.StreamReader, pipe: asyncio.ReadTransport) -> None:
        self._reader, self._pipe = reader, pipe

    def end(self) -> None:
        """Let no further line come."""
        self._pipe.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self._line():
            if len(line) <= MAX_LINE_BYTES:
                yield line.decode(errors="replace")
            else:
                _log.warning("mcp.line_too_long", extra={"limit_bytes": MAX_LINE_BYTES})

    async def _line(self) -> bytes:
        """Return the next line, or one byte too much of it; nothing at the end."""
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
    """Yield the lines of the input, None if it is a file, and input and output as the SDK takes them.

    Meanwhile descriptor 1 is standard error and descriptor 0 the null device, for this process and for those
    that it starts: what a tool, a module or a child prints is no message, and what they read is nothing.
    """
    printed = sys.stdout
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, null)
        kept = stack.enter_context(_instead(0, null))
        wire = stack.enter_context(_instead(1, 2))
        stack.callback(printed.flush)  # while descriptor 1 is still standard error
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
    """Return False for files, which a loop cannot wait for; nor does their end keep a reader waiting."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


@contextmanager
def _instead(descriptor: int, other: int) -> Iterator[int]:
    """Let a descriptor be another one for a while; yield a copy of itself."""
    kept = os.dup(descriptor)
    os.dup2(other, descriptor)
    try:
        yield kept
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
