"""An MCP server as a child process, with a size limit for its messages.

The SDK's own transport has no limit for a line, and copies the whole line for each piece that arrives.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream, Process
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from compose._models.clean_text import clean_json

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Maximum number of bytes of one message of a server. A server that sends more is stopped."""
EXIT_LIMIT_S: Final = 2.0
"""Seconds for a server to exit after its input is closed, and again after SIGTERM."""

_log = logging.getLogger("callboard.models")
_CLOSED: Final = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    ConnectionError,
)


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str], environment: Mapping[str, str], on_end: Callable[[str], None]
) -> AsyncIterator[
    tuple[ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]]
]:
    """Start a server, and yield streams of its messages for the SDK's `Client`. Stop the server at the end.

    Args:
        command: Program and arguments. It gets no variables of this process except PATH, HOME and the like.
        environment: Further variables.
        on_end: Called with the reason when the server's output ends.
    """
    env = {**get_default_environment(), **environment}
    # A session of its own, so that Ctrl-C does not reach the server, and `_stop` reaches all its processes.
    process = await anyio.open_process([*command], env=env, stderr=None, start_new_session=True)
    to_sdk, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_sdk = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group, to_sdk, from_sdk, incoming, outgoing:
        group.start_soon(_read, process, to_sdk, on_end)
        group.start_soon(_write, process, from_sdk)
        try:
            yield incoming, outgoing
        finally:
            # Shielded: a cancelled caller must not leave a server that runs.
            with anyio.CancelScope(shield=True):
                await _stop(process)
            group.cancel_scope.cancel()


async def _read(
    process: Process,
    to_sdk: ObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[str], None],
) -> None:
    assert process.stdout is not None
    line, end_reason = bytearray(), "it ended"
    with suppress(*_CLOSED):
        while True:
            piece = await process.stdout.receive()
            *line_ends, rest = piece.split(b"\n")
            for part in line_ends:
                line += part
                if line.strip():
                    await to_sdk.send(_message(bytes(line)))
                line.clear()
            line += rest
            if len(line) > MAX_MESSAGE_BYTES:
                end_reason = (
                    f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB: ask it for less"
                )
                break
    on_end(end_reason)
    await to_sdk.aclose()


async def _write(process: Process, from_sdk: ObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with suppress(*_CLOSED, OSError):
        async for message in from_sdk:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await process.stdin.send(text.encode() + b"\n")


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        try:  # a message with an unpaired surrogate is repaired
            repaired_data = clean_json(json.loads(line))
            return SessionMessage(
                jsonrpc_message_adapter.validate_python(repaired_data, by_name=False)
            )
        except ValueError as exc:
            _log.warning(
                "an MCP server wrote a line that is not a message", extra={"size_bytes": len(line)}
            )
            return exc


async def _stop(process: Process) -> None:
    """Close the server's input, then send SIGTERM, then SIGKILL, to it and its process group."""
    assert process.stdin is not None
    with suppress(*_CLOSED, OSError):
        await process.stdin.aclose()
    for stop_signal in (None, signal.SIGTERM, signal.SIGKILL):
        if stop_signal is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, stop_signal)
        with anyio.move_on_after(EXIT_LIMIT_S):
            # Not `wait`, which also waits for the pipes: a grandchild may hold them.
            while process.returncode is None:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            break
    with suppress(*_CLOSED, OSError):
        await process.aclose()
