"""The calendar as an MCP server, which `assistant.py --mcp` starts and speaks to by its standard streams."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("calendar")


@server.tool()
def book(room: str) -> str:
    """Book a room."""
    return f"the {room} room is booked"


if __name__ == "__main__":
    server.run("stdio")
