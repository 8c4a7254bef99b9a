"""The two ends of a chat at a terminal: the display of a session's events, and the person who types.

Events are shown as text for people, or as lines of JSON. The person types one line at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import queue
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, Protocol

from rich.console import Console
from rich.text import Text
from typing_extensions import override

from actors._kernel.agent.transcript import Turn
from actors._sessions.events import EVENTS, SessionEvent
from compose._commands.output import short
from compose._commands.sessions.look import ENDS_EARLY, SHOWN_ID, lines_of_blocks
from compose._host.logs import visible

YOU: Final = "you> "
STEP: Final = "  "
BEGINS_ANEW: Final = "(the answer begins anew)"


class ChatScreen(Protocol):
    """A display of a conversation."""

    def event(self, event: SessionEvent, *, depth: int = 0) -> None:
        """Show an event. `depth` is 0 for a run of the session, 1 for its child runs, and so on."""

    def typed(self, run_id: str, text: str, *, is_seen: bool) -> None:
        """Remember the text that started a run. Show it unless `is_seen`: then it is on the screen already."""

    def past(self, turns: Sequence[Turn], left_out: int) -> None:
        """Show the last turns of a conversation. `left_out` is the number of turns before them."""

    def note(self, text: str, *, style: str = "dim") -> None:
        """Show a line of the program."""

    @property
    def is_inside(self) -> bool:
        """True while the last line of output has no end."""


class JsonScreen(ChatScreen):
    """A display that prints each event as a line of JSON on standard output, and notes on standard error."""

    is_inside = False

    @override
    def event(self, event: SessionEvent, *, depth: int = 0) -> None:
        sys.stdout.write(EVENTS.dump_json(event).decode() + "\n")
        sys.stdout.flush()

    @override
    def typed(self, run_id: str, text: str, *, is_seen: bool) -> None:
        pass

    @override
    def past(self, turns: Sequence[Turn], left_out: int) -> None:
        pass

    @override
    def note(self, text: str, *, style: str = "dim") -> None:
        sys.stderr.write(visible(text) + "\n")


class TextScreen(ChatScreen):
    """A display that prints the pieces of an answer as they arrive, and each other event on its own line.

    Args:
        out: The terminal.
        decide: Returns the command that decides an approval, by the approval's id.
    """

    def __init__(self, out: Console, decide: Callable[[str], str]) -> None:
        self._out, self._decide = out, decide
        self._answer: list[str] = []
        """The part of the current answer that is on the screen."""
        self._call: tuple[str, str, int] = ("", "", 0)
        """The model call of the current answer: its run, position and attempt."""
        self._is_inside = False
        self._typed_texts: dict[str, str] = {}
        self._last_answers: dict[str, str] = {}
        """The last answer of each open run, by the run's id. Without one the run's output is shown."""

    @property
    @override
    def is_inside(self) -> bool:
        return self._is_inside

    @override
    def typed(self, run_id: str, text: str, *, is_seen: bool) -> None:
        if run_id not in self._typed_texts:
            self._typed_texts[run_id] = text
            if not is_seen:
                self._line(YOU + text, style="bold")

    @override
    def note(self, text: str, *, style: str = "dim") -> None:
        self._line(text, style=style)

    @override
    def past(self, turns: Sequence[Turn], left_out: int) -> None:
        if left_out:
            self._line(f"({left_out} turns before)", style="dim")
        for message in (turn.message for turn in turns):
            if message.role == "user":
                self._line(YOU + message.text, style="bold")
                continue
            if message.role == "assistant" and message.text:
                self._line(message.text)
            for line in lines_of_blocks(message):
                self._line(line, style="dim")

    @override
    def event(self, event: SessionEvent, *, depth: int = 0) -> None:
        payload: dict[str, Any] = dict(event.payload)
        if depth == 0 and event.type in _TEXTS:
            self._piece(event, payload)
            return
        if depth == 0 and event.type == "message":
            self._message(event.run_id, payload)
            return
        if event.type == "run_completed":
            if depth == 0:
                output = payload["output"]
                if output is not None and event.run_id not in self._last_answers:
                    self._line(output if isinstance(output, str) else short(output))
                self._forget(event.run_id)
            return
        if event.type == "approval_requested":
            text = f"? {question_text(payload)} waits for a person: {self._decide(payload['approval_id'])}"
            self._line(STEP * depth + text, style="yellow")
            return
        if (line_of := _LINES.get(event.type)) is not None and (line := line_of(payload)):
            self._line(STEP * depth + line, style=_STYLES.get(event.type, "dim"))
        if depth == 0 and event.type in ("run_failed", "run_cancelled"):
            self._forget(event.run_id)

    def _piece(self, event: SessionEvent, payload: dict[str, Any]) -> None:
        """Show a piece of an answer. A snapshot and the first piece of an attempt replace earlier pieces."""
        if event.type == "reasoning_delta":
            self._write(payload["text"], style="dim italic")
            return
        call = (event.run_id, payload["position"], payload["attempt"])
        if event.type == "text_snapshot":
            self._call = call
            self._replace(payload["text"], why=BEGINS_ANEW)
            return
        if call != self._call:
            is_again = call[:2] == self._call[:2] and bool(self._answer)
            self._call = call
            self._start_anew(BEGINS_ANEW if is_again else "")
        self._answer.append(payload["text"])  # joined at the end: a sum would copy it each time
        self._write(payload["text"])

    def _message(self, run_id: str, payload: dict[str, Any]) -> None:
        if payload["role"] == "user":
            typed_text = self._typed_texts.get(run_id)
            if typed_text is None or payload["text"] not in typed_text:
                self._line(YOU + payload["text"], style="bold")
        elif payload["role"] == "assistant":
            if payload["text"]:
                self._replace(payload["text"], why="(the whole answer:)")
                self._last_answers[run_id] = payload["text"]
            self._end_line()
            self._answer = []
            if payload.get("stopped") == "length":
                self._line(ENDS_EARLY, style="dim")

    def _forget(self, run_id: str) -> None:
        self._end_line()
        self._answer = []
        self._typed_texts.pop(run_id, None)
        self._last_answers.pop(run_id, None)

    def _replace(self, text: str, *, why: str) -> None:
        """Show the rest of an answer, or all of it if the part on the screen is not its beginning."""
        on_screen = "".join(self._answer)
        if not text.startswith(on_screen):
            self._start_anew(why)
            on_screen = ""
        rest = text[len(on_screen) :]
        self._answer = [text] if text else []
        if rest:
            self._write(rest)

    def _start_anew(self, why: str) -> None:
        self._end_line()
        if why:
            self._line(why, style="dim")
        self._answer = []

    def _write(self, text: str, *, style: str = "") -> None:
        self._out.print(Text(text), end="", style=style, soft_wrap=True)
        self._out.file.flush()
        if text:
            self._is_inside = not text.endswith("\n")

    def _line(self, text: str, *, style: str = "") -> None:
        self._end_line()
        self._out.print(Text(text), style=style, soft_wrap=True)

    def _end_line(self) -> None:
        if self._is_inside:
            self._out.print()
            self._is_inside = False


def question_text(payload: dict[str, Any]) -> str:
    """Return the question of an approval: a tool with its arguments, or the agent's text, made `visible`."""
    args = payload.get("args")
    if isinstance(args, dict) and args.keys() == {"risk", "arguments"}:
        args = args["arguments"]
    what = str(payload["what"]).removeprefix("tool ")
    return visible(what if args is None else f"{what} {short(args)}")


def _tool_finished(payload: dict[str, Any]) -> str:
    result = payload["result"]
    text = result.get("text") or result.get("message") if isinstance(result, dict) else result
    status = "" if payload["status"] == "ok" else f" {payload['status']}"
    return f"← {payload['name']}{status}: {short(text)}"


def _approval_decided(payload: dict[str, Any]) -> str:
    by = f" by {payload['by']}" if payload.get("by") else ""
    comment = f": {payload['comment']}" if payload.get("comment") else ""
    return f"{payload['status']}{by}{comment}"


def _child_started(payload: dict[str, Any]) -> str:
    type_, _, key = payload["agent"].partition("/")
    return f"» {payload['child'][:8]} {type_}/{key[:SHOWN_ID]}"


def _child_finished(payload: dict[str, Any]) -> str:
    error = payload.get("error") or {}
    outcome = short(error.get("message") or payload.get("output"))
    return f"« {payload['child'][:8]} {payload['status'].lower()}: {outcome}"


def _run_waiting(payload: dict[str, Any]) -> str:
    if payload.get("parked"):
        reason = payload.get("detail") or payload["parked"]
        return f"an operator has to decide: {reason} (callboard runs list --parked)"
    until = (
        f" until {payload['until'][:19].replace('T', ' ')} UTC at the latest"
        if payload.get("until")
        else ""
    )
    return f"the run waits{until}"


def _attempt_failed(payload: dict[str, Any]) -> str:
    instant_text = payload["retry_at"][:19].replace("T", " ")
    return f"attempt {payload['attempt']} failed: {_why(payload)}; again at {instant_text} UTC"


def _why(payload: dict[str, Any]) -> str:
    error = payload["error"]
    return str(error.get("message") or error.get("type") or "no reason given")


_TEXTS: Final = ("text_delta", "text_snapshot", "reasoning_delta")
_LINES: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "run_queued": lambda payload: f"waits behind {payload['ahead']} run(s) of this session",
    "tool_started": lambda payload: (
        f"→ {payload['name']} {short(payload.get('arguments'))}".rstrip()
    ),
    "tool_finished": _tool_finished,
    "approval_decided": _approval_decided,
    "child_started": _child_started,
    "child_finished": _child_finished,
    "run_waiting": _run_waiting,
    "run_resumed": lambda payload: (
        "the run continues after a crash" if payload["reason"] == "recovered" else ""
    ),
    "attempt_failed": _attempt_failed,
    "cancel_requested": lambda payload: "stopping…",
    "cancel_timeout": lambda payload: f"the run has not ended within {payload['waited_s']:g} s",
    "run_cancelled": lambda payload: (
        "the run was cancelled" + (f": {payload['reason']}" if payload["reason"] else "")
    ),
    "run_failed": lambda payload: f"the run failed: {_why(payload)}",
}
"""Functions that return an event's line, by the event's type. Other events have no line."""
_STYLES: Final = {"run_failed": "red", "attempt_failed": "yellow", "run_cancelled": "yellow"}


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
        self._prompts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._prompt = ""
        self._is_reading = self._is_asked = False
        self._editor: Any = None
        if sys.stdout.isatty():
            with contextlib.suppress(ImportError):  # `input` uses it to edit and recall lines
                self._editor = importlib.import_module("readline")
        # A daemon, because a thread that waits for a line must not keep the program from ending.
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
            self._prompts.put(prompt)
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
        typed_text = "" if self._editor is None else self._editor.get_line_buffer()
        sys.stdout.write(self._prompt + typed_text)
        sys.stdout.flush()

    def _read_for_ever(self) -> None:
        # The thread opens a stream of its own, because the interpreter waits for the lock of `sys.stdin` at
        # its exit.
        with open(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False) as stdin:
            while True:
                line = self._read(self._prompts.get(), stdin)
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
def restore_terminal() -> Iterator[None]:
    """Restore the terminal's settings at the end, because editing a line turns its echo off."""
    try:
        settings = termios.tcgetattr(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):
        yield
        return
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, settings)
