"""An MCP server made with the SDK, for the tests of its client."""

from __future__ import annotations

import os

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, TextContent, ToolAnnotations

server = MCPServer("calendar")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def book(day: str) -> dict[str, str]:
    """Book a day."""
    return {"day": day, "by": os.environ.get("BOOKED_BY", "nobody")}


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
def pid() -> int:
    """Return the server's process."""
    return os.getpid()


@server.tool(structured_output=False)
def look() -> list[TextContent | ImageContent]:
    """Return a text and an image."""
    image = ImageContent(type="image", data="aGFsbG8=", mime_type="image/png")
    return [TextContent(type="text", text="this:"), image]


if __name__ == "__main__":
    server.run("stdio")
