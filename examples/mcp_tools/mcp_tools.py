"""A flow calls tools of an MCP server, and is itself a tool of one: a client of MCP starts durable runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

HERE: Final = Path(__file__).parent
BOOK: Final = "STOCK_BOOK"
"""The variable that names the file of reservations."""


async def order(client: Client, item: str, count: int, id_: str) -> dict[str, Any]:
    """Order, by a call with an id of ours: the same id again is the same run."""
    meta: Any = {"callboard/id": id_}
    asked = {"item": item, "count": count}
    found = (await client.call_tool("order", asked, meta=meta)).structured_content
    assert found is not None
    print(f"{id_}: {count} {item}: {found['output']}")
    return found


async def play(folder: Path, options: list[str]) -> bool:
    """Call the worker's tools as any client of MCP does; return whether all holds that is to be proved."""
    words = ["-m", "compose", "mcp-worker", "--flows", "flows:FLOWS", *options]
    path = os.pathsep.join([str(HERE), *(one for one in sys.path if one)])
    env = os.environ | {"PYTHONPATH": path, BOOK: str(folder / "stock.txt")}
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(env), cwd=HERE)
    with (folder / "worker.log").open("w") as log:
        async with Client(stdio_client(server, errlog=log)) as client:
            names = [one.name for one in (await client.list_tools()).tools]
            first = await order(client, "chair", 2, "o-1")
            again = await order(client, "chair", 2, "o-1")
            none = await order(client, "lamp", 1, "o-2")
            wrong = await client.call_tool("run_result", {"run": "nothing"})
            late = await client.call_tool("run_result", {"run": first["run"]})
    book = (folder / "stock.txt").read_text("utf-8").splitlines()
    proofs = {
        f"the worker has the tools {' and '.join(names)}": names == ["order", "run_result"],
        "the flow asked the tools of another MCP server": "said" in first["output"],
        "the same id is the same run, with the same output": again == first,
        f"so the warehouse has one line: {book[0]}": book == ["2 chair"],
        "what is not there is not reserved": none["output"] == {"reserved": 0, "there": 0},
        "the result of a run can be asked for later": late.structured_content == first,
        "a run that is not there is an error that a model reads": wrong.is_error is True,
    }
    for text, holds in proofs.items():
        print(f"  {'proved' if holds else 'WRONG '}  {text}")
    return all(proofs.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--postgres-url", help="where runs are kept; without it in the worker's memory"
    )
    url = parser.parse_args().postgres_url
    with tempfile.TemporaryDirectory() as made:
        chosen = [] if url is None else ["--postgres-url", url]
        sys.exit(not asyncio.run(play(Path(made), chosen)))
