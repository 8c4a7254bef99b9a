"""MCP servers as tools of agents: lists of tools, sessions, and servers that are child processes."""
