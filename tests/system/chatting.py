"""`callboard chat` in a process and a terminal of its own, and its agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

from actors import Risk, Tool, ToolCall
from actors.agents import ReActAgent
from actors.testing import FunctionModel, ModelReply
from tests.system.processes import ROOT
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors import ChatMessage, GenerationOptions

STUCK: Final = "CHAT_TEST_STUCK"
"""Variable of a process whose long answers never end."""
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def answer(messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
    """Answer the last message. A long answer stops half-way if the process's variable is set."""
    del options
    last = messages[-1]
    logging.getLogger("callboard.models").info("loading for a test")
    if last.role == "tool":
        return ModelReply(text="The desk has an answer.")
    if "refund" in last.text:
        return ModelReply(calls=[ToolCall(id="1", name="refund", arguments={"order": "7"})])
    if "long" not in last.text:
        return ModelReply(text=f"You said {last.text}.")
    pieces = ["First ", "second ", f"third of {last.text}."]
    return ModelReply(text="".join(pieces), pieces=pieces, between=_stop_after_two())


def _stop_after_two() -> Stopping | None:
    return Stopping() if os.environ.get(STUCK) else None


class Stopping:
    """A model hook that blocks for ever after the second piece."""

    def __init__(self) -> None:
        self._count = 0

    async def __call__(self) -> None:
        """Return after the first piece."""
        self._count += 1
        if self._count > 1:
            await asyncio.get_running_loop().create_future()


async def refund(order: str) -> str:
    """Pay a refund."""
    return f"refunded {order}"


AGENT = ReActAgent(
    "desk",
    model=FunctionModel(answer),
    tools=[Tool("refund", "Give money back.", refund, risk=Risk.HIGH)],
)


class ChatProcess:
    """One `callboard chat` at a terminal.

    Attributes:
        shown: The terminal's output so far.
    """

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        own_env = {
            key: text for key, text in os.environ.items() if not key.startswith("CALLBOARD_")
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "compose", "chat", "tests.system.chatting:AGENT", *arguments],
            cwd=ROOT,
            env={**own_env, "TERM": "xterm", "COLUMNS": "100", **(env or {})},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.screen_text, self._seen = "", 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # its terminal is closed
            while data := os.read(self._ours, 65_536):
                self.screen_text += _ESCAPES.sub("", data.decode(errors="replace"))

    async def sees(self, text: str) -> None:
        """Return once a text is on the terminal after the texts found before."""

        def is_there() -> bool:
            position = self.screen_text.find(text, self._seen)
            assert position >= 0 or self._process.poll() is None, (
                f"ended early:\n{self.screen_text}"
            )
            if position >= 0:
                self._seen = position + len(text)
            return position >= 0

        await until(is_there, f"{text!r} on the terminal")

    async def says(self, line: str) -> None:
        """Type a line at the next prompt."""
        await self.sees("you> ")
        self.types(line)

    def types(self, line: str) -> None:
        """Type a line."""
        os.write(self._ours, f"{line}\n".encode())

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        """Return its exit code once it has ended."""
        await until(lambda: self._process.poll() is not None, "the end of the chat")
        return self._process.returncode

    def end(self) -> None:
        """Kill it if it still runs, and close the terminal."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._ours)
