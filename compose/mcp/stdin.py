"""Standard input as lines that can be waited for, with an upper limit and without a thread."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

MAX_LINE_BYTES: Final = 1024 * 1024
"""Of one message."""
_log = logging.getLogger("callboard.mcp")


class InputLines:
    """The lines of standard input, for the SDK. `end` ends them, as the end of the input does.

    A line beyond the limit is dropped. While they are read descriptor 0 is the null device: a tool that reads
    the standard input finds nothing there.
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
async def input_lines() -> AsyncIterator[InputLines | None]:
    """Yield the lines; None: it is a file, which the SDK reads."""
    if stat.S_ISREG(os.fstat(0).st_mode):
        yield None
        return
    kept = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(kept, "rb", buffering=0)
    )
    try:
        yield InputLines(reader, pipe)
    finally:
        pipe.close()
