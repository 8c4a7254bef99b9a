"""MCP servers as tools of agents: the list of tools, sessions, and servers that are child processes."""
