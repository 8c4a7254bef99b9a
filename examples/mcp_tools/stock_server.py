"""A warehouse as an MCP server, which `mcp_tools.py` starts and speaks to by its standard streams."""

from __future__ import annotations

import os
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("stock")
BOOK = Path(os.environ.get("STOCK_BOOK", "stock.txt"))


@server.tool()
def stock(item: str) -> int:
    """Say how many of an item are there."""
    return {"chair": 7, "lamp": 0}.get(item, 0)


@server.tool()
def reserve(item: str, count: int) -> str:
    """Reserve some of an item."""
    with BOOK.open("a", encoding="utf-8") as book:
        print(count, item, file=book)
    return f"{count} {item} reserved"


if __name__ == "__main__":
    server.run("stdio")
