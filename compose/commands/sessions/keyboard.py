"""The person at the terminal, who types one line at a time."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import queue
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Protocol

from typing_extensions import override


class Person(Protocol):
    """A person at the terminal, who answers prompts."""

    @property
    def is_asked(self) -> bool:
        """True while a call of `ask` waits for a line."""

    async def ask(self, prompt: str, *, fresh: bool = False) -> str | None:
        """Return the next line, or None at the end of input.

        Args:
            prompt: Text that is shown before the line.
            fresh: Drop characters that were typed before the call.
        """

    def clear(self) -> None:
        """Clear the line of the prompt, so that output can be printed there."""

    def redraw(self) -> None:
        """Show the prompt again, with the characters that were typed so far."""


class Keyboard(Person):
    """The terminal of this process. A thread reads lines, so that the loop can print output meanwhile.

    The thread continues to read when an `ask` is cancelled. The next `ask` gets that line.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._prompt = ""
        self._is_reading = self._is_asked = False
        self._editor: Any = None
        if sys.stdout.isatty():
            with contextlib.suppress(ImportError):  # `input` uses it to edit and recall lines
                self._editor = importlib.import_module("readline")
        threading.Thread(target=self._read_for_ever, name="keyboard", daemon=True).start()

    @property
    @override
    def is_asked(self) -> bool:
        return self._is_asked

    @override
    async def ask(self, prompt: str, *, fresh: bool = False) -> str | None:
        if fresh and not self._is_reading:
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        self._prompt = prompt
        if self._is_reading:
            self.redraw()
        else:
            self._is_reading = True
            self._wanted.put(prompt)
        self._is_asked = True
        try:
            line = await self._lines.get()
        finally:
            self._is_asked = False
        self._is_reading = False
        return line

    @override
    def clear(self) -> None:
        if self._is_asked and sys.stdout.isatty():
            sys.stdout.write("\r\x1b[K")

    @override
    def redraw(self) -> None:
        typed = "" if self._editor is None else self._editor.get_line_buffer()
        sys.stdout.write(self._prompt + typed)
        sys.stdout.flush()

    def _read_for_ever(self) -> None:
        # The thread opens a stream of its own, because the interpreter waits for the lock of `sys.stdin` at
        # its exit.
        with open(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False) as stdin:
            while True:
                line = self._read(self._wanted.get(), stdin)
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def _read(self, prompt: str, stdin: IO[str]) -> str | None:
        if self._editor is not None:
            try:
                return input(prompt)
            except (EOFError, OSError):
                return None
        sys.stdout.write(prompt)
        sys.stdout.flush()
        line = stdin.readline()
        return line.rstrip("\n") if line else None


@contextmanager
def terminal_kept() -> Iterator[None]:
    """Restore the terminal's settings at the end, because editing a line turns its echo off."""
    try:
        before = termios.tcgetattr(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):
        yield
        return
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
