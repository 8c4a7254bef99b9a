"""The worker of `callboard mcp-worker`: a process that serves tools, flows and agents to clients of MCP.

`process` puts it together: the tools that the options name, a server of the SDK (`server`), and a transport.
Over standard streams the parent process is the one client. Over HTTP `access` checks host, origin and token
before the SDK sees a request. `toolsets` has the tools; `runs` makes tools of flows and agents.
"""
