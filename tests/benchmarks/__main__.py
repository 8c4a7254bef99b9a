"""`python -m tests.benchmarks [NAME …] [--scale 0.1]`: on embedded servers that sync."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from compose._assembly.local import local_servers
from compose._host.collector import collect_rarely
from tests.benchmarks import (
    asks,
    between,
    chats_open,
    children,
    cold,
    documents,
    erases,
    flow_waits,
    flows,
    generates,
    graphs,
    http,
    idle,
    latency,
    memories,
    outside,
    posts,
    resume,
    searches,
    spans,
    steps,
    suspended,
    talks,
    talks_elsewhere,
    timers,
    tool_servers,
    windows,
)
from tests.benchmarks.peers import comparison

ON_POSTGRES = {
    "steps": steps.run,
    "spans": spans.run,
    "suspended": suspended.run,
    "idle": idle.run,
    "timers": timers.run,
    "children": children.run,
    "posts": posts.run,
    "resume": resume.run,
    "windows": windows.run,
    "generates": generates.run,
    "replayed_generates": generates.replayed,
    "chats_open": chats_open.run,
    "memories": memories.run,
    "talks": talks.run,
    "searches": searches.run,
    "erases": erases.run,
    "http": http.run,
    "flows": flows.run,
    "flow_waits": flow_waits.run,
    "documents": documents.run,
    "tool_servers": tool_servers.run,
    "peers": comparison.run,
}
ON_BROKER = {
    "outside": outside.run,
    "between": between.run,
    "asks": asks.run,
    "latency": latency.run,
    "cold": cold.run,
    "talks_elsewhere": talks_elsewhere.run,
    "idle-broker": idle.with_broker,
}
ALONE = {"graphs": graphs.run}


async def run(names: list[str], scale: float) -> None:
    """Run the named benchmarks one after the other."""
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        async with local_servers(Path(folder) / "servers") as servers:
            for name in names:
                if name in ALONE:
                    await ALONE[name](scale=scale)
                elif name in ON_POSTGRES:
                    await ON_POSTGRES[name](servers.postgres_url, scale=scale)
                else:
                    both_servers = outside.Servers(servers.postgres_url, servers.nats_url)
                    await ON_BROKER[name](both_servers, scale=scale)


def main() -> None:
    """Run the named benchmarks, or all."""
    every = [*ON_POSTGRES, *ON_BROKER, *ALONE]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*every, []], help="default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size")
    parser.add_argument("--times", type=int, default=1, help="so often, all of them in turn")
    options = parser.parse_args()
    collect_rarely()  # as a host does; the floors have the same
    asyncio.run(run((options.names or every) * options.times, options.scale))


if __name__ == "__main__":
    main()
