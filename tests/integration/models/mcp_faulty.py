"""An MCP server without an SDK that does what servers should not: `python mcp_faulty.py LEDGER [mute]`.

Each call is a line of the ledger, so that a test can count calls.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TOOLS = ("die", "echo", "garble", "hang", "huge", "long", "odd", "pid", "unknown tool")
LARGE = "0123456789" * 5_000_000
LONG = "€" * 66_000 + "end"
"""Of 198,003 bytes, with characters that no border between two parts may cut."""


def result(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of a call that has one."""
    text = {
        "echo": str(arguments.get("text")),
        "garble": "still here",
        "huge": LARGE,
        "long": LONG,
        "odd": "a\x00b\ud800c",
        "pid": str(os.getpid()),
    }[name]
    return {"content": [{"type": "text", "text": text}]}


def answer(message: dict[str, Any], ledger: Path) -> dict[str, Any] | None:
    """The answer to a message of a client; None: there is none."""
    method, params = message.get("method"), message.get("params", {})
    if "id" not in message:
        return None
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    match method:
        case "initialize":
            info = {"name": "faulty", "version": "1"}
            version = params["protocolVersion"]
            capabilities: dict[str, Any] = {"tools": {}}
            reply["result"] = {
                "protocolVersion": version,
                "capabilities": capabilities,
                "serverInfo": info,
            }
        case "tools/list":
            schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            reply["result"] = {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]}
        case "tools/call":
            name = params["name"]
            with ledger.open("a") as file:
                file.write(f"{name}\n")
            if name == "hang":
                return None
            if name == "die":
                os._exit(3)
            if name not in TOOLS[:-1]:
                reply["error"] = {"code": -32602, "message": f"Unknown tool: {name}"}
            else:
                reply["result"] = result(name, params.get("arguments", {}))
        case _:
            reply["error"] = {"code": -32601, "message": "Method not found"}
    return reply


def main() -> None:
    """Answer lines on standard input, until it is closed."""
    ledger, *mute = sys.argv[1:]
    for line in sys.stdin:
        message = json.loads(line)
        if mute:
            continue
        if message.get("params", {}).get("name") == "garble":
            sys.stdout.write("this is no JSON\n\n[1]\n")
        reply = answer(message, Path(ledger))
        if reply is not None:
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
