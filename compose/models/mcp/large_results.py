"""Results of MCP tools that are too long for a model. They become artifacts that the model reads in parts."""

from __future__ import annotations

import codecs
from typing import Any, Final

from pydantic_core import to_json

from actors.errors import ContractError, PersistenceError
from actors.kernel.agent.tools import InvocationResult
from actors.runtime import artifact_store
from compose.models.mcp.session import McpConnection, McpServerError

MAX_RESULT_BYTES: Final = 64 * 1024
"""Maximum number of bytes, as JSON, that a model gets of a result at once."""
READER: Final = "read_result"
"""Name of the tool that reads further parts, without the server's prefix."""
READER_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "artifact": {"type": "string", "description": "The id that stands behind the beginning."},
        "offset": {"type": "integer", "minimum": 0, "description": "The first byte to read."},
    },
    "required": ["artifact", "offset"],
}


async def within_limit(value: Any, reader: str) -> Any:
    """Return a small result unchanged; return the start of a large result, with a note where to read on.

    Outside of a run, or if the artifact store is unavailable, the rest is not stored.

    Args:
        value: JSON data.
        reader: Name of the tool that reads further parts.
    """
    encoded = _encoded(value)
    if len(encoded) <= MAX_RESULT_BYTES:
        return value
    try:
        artifacts = artifact_store()
    except ContractError:  # outside of a run
        return beginning_of(value)
    kind = "text/plain" if isinstance(value, str) else "application/json"
    try:
        ref = await artifacts.store(encoded, content_type=kind)
    except PersistenceError:  # the tool was called, so its result must not be lost
        return beginning_of(value)
    shown, end = _text(encoded, 0)
    note = f"the result has {ref.size_bytes:,} bytes; {_read_on(reader, ref.id, end)}"
    return InvocationResult(status="ok", text=f"{shown}\n[{note}]", artifact_ref=ref.id)


def beginning_of(value: Any) -> str:
    """Return a result as text, or the start of a large result, with a note."""
    encoded = _encoded(value)
    shown, end = _text(encoded, 0)
    if end == len(encoded):
        return shown
    return f"{shown}\n[cut: {end:,} of {len(encoded):,} bytes are shown; ask for less]"


async def read_on(connection: McpConnection, reader: str, /, artifact: str, offset: int = 0) -> str:
    """Return a part of a large result as text, with a note where the next part starts.

    Raises:
        McpServerError: The agent has no such artifact, or it was deleted.
    """
    artifacts, offset = artifact_store(), max(0, int(offset))
    ref = await artifacts.stat(str(artifact))
    if ref is None:
        problem = (
            f"there is no result {artifact!r}: a result is kept for a day. Call its tool again"
        )
        raise McpServerError(connection.server.name, problem)
    data = await artifacts.read(ref.id, offset=offset, limit=MAX_RESULT_BYTES)
    shown, read = _text(data, offset)
    end = offset + len(data) if offset + len(data) >= ref.size_bytes else read
    note = "that is the end" if end >= ref.size_bytes else _read_on(reader, ref.id, end)
    return f"{shown}\n[{note}]"


def _read_on(reader: str, artifact: str, offset: int) -> str:
    return f"go on by {reader}(artifact={artifact!r}, offset={offset})"


def _encoded(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else to_json(value)


def _text(data: bytes, offset: int) -> tuple[str, int]:
    """Return the characters that are complete within the first bytes, and the offset of the next one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    part = data[:MAX_RESULT_BYTES]
    text = decoder.decode(part)
    return text, offset + len(part) - len(decoder.getstate()[0])
