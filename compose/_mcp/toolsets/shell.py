"""The toolset `shell`: executes commands with the rights of this process."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from actors._kernel.agent.tools import Risk, Tool
from actors._runtime.loop.tasks import TaskScope
from actors.errors import ActorsError, Facts

MAX_OUTPUT_BYTES: Final = 64 * 1024
"""Maximum number of bytes kept of stdout, and of stderr. Further output is read and dropped."""
MAX_COMMAND_S: Final = 600.0
_END_LIMIT_S: Final = 1.0
_POLL_S: Final = 0.01
_READ_BYTES: Final = 64 * 1024
_KEPT_VARIABLES: Final = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""Variables that a command gets from this process's environment. Others may be secrets of the worker."""


class CommandLimitError(Facts, ActorsError):
    """A command exceeded its time limit and was killed.

    Attributes:
        limit_s: The limit in seconds.
    """

    text = "the command took longer than {limit_s:g} s and was killed: give a larger timeout_s, up to 600"
    limit_s: float


def shell_tools(folder: Path) -> list[Tool]:
    """Return the tools. Commands start in `folder`, but are not confined to it."""

    async def execute_command(command: str, timeout_s: float = 60.0) -> dict[str, Any]:
        limit_s = min(max(timeout_s, 0.0), MAX_COMMAND_S)
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            cwd=folder,
            env=environment,
            # A group of its own, so that `_kill_group` kills all processes of the command, and not the
            # worker.
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limit_s):
                return await _outcome(process)
        except TimeoutError:
            raise CommandLimitError(limit_s) from None
        finally:
            _kill_group(process)
            with suppress(TimeoutError):  # a process outside the group may hold the streams
                async with asyncio.timeout(_END_LIMIT_S):
                    await process.wait()

    description = "Execute a command by the shell; return its exit code and what it wrote."
    return [Tool("execute_command", description, execute_command, risk=Risk.CRITICAL)]


async def _outcome(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    assert process.stderr is not None
    output: dict[str, Any] = {}
    async with TaskScope() as tasks:
        tasks.start(_read(process.stdout, "stdout", output), name="stdout")
        tasks.start(_read(process.stderr, "stderr", output), name="stderr")
        # Not `wait`, which also waits for the streams: processes that the command left may hold them.
        while process.returncode is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        _kill_group(process)
        await tasks.settle(limit_s=MAX_COMMAND_S)
    return {"exit_code": process.returncode, **output}


def _kill_group(process: Process) -> None:
    """Kill a command and the processes of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _read(stream: asyncio.StreamReader, name: str, output: dict[str, Any]) -> None:
    data, size = bytearray(), 0
    while piece := await stream.read(_READ_BYTES):
        size += len(piece)
        data += piece[: MAX_OUTPUT_BYTES - len(data)]
    output[name] = data.decode(errors="replace").replace("\x00", "\ufffd")
    if size > MAX_OUTPUT_BYTES:
        output[f"{name}_bytes"] = size
