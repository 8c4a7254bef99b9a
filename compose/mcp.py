"""Tools for MCP clients and for models: files of one folder."""

from compose._mcp.toolsets.files import file_tools
from compose._mcp.toolsets.folder import ConfinedFolder

__all__ = ["ConfinedFolder", "file_tools"]

__path__: list[str] = []  # modules of the release before were below this one
