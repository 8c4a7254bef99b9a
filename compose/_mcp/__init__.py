"""The worker of `callboard mcp-worker`: a process that serves tools, flows and agents to MCP clients.

`process` combines the tools that the options name, a server of the SDK (`server`), and a transport. Over
standard streams the parent process is the only client. Over HTTP, `http` checks host, origin and token before
the SDK gets a request. `toolsets` has the tools; `runs` turns flows and agents into tools.
"""
