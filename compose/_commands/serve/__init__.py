"""Commands that serve agents, sessions or tools: `host`, `dev`, `demo`, `serve` and `mcp-worker`."""
