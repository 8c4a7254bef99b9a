"""An aegra server with a graph that does nothing: a program that `served_aegra` starts.

`python aegra_server.py FOLDER` serves until it is ended. FOLDER gets the graph and the configuration. The first
line of the output is the port. Aegra reads the database and the sizes of pools from environment variables.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

GRAPH = """
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class Vars(TypedDict):
    text: str
    done: bool

async def answer(state):
    return {"text": "Yes.", "done": True}

built = StateGraph(Vars)
built.add_node("answer", answer)
built.add_edge(START, "answer")
built.add_edge("answer", END)
graph = built.compile()
"""


def main(folder: Path) -> None:
    """Serve the graph on a free port, with uvloop and httptools."""
    (folder / "answers.py").write_text(GRAPH)
    (folder / "aegra.json").write_text(json.dumps({"graphs": {"bench": "./answers.py:graph"}}))
    os.chdir(folder)
    uvicorn: Any = importlib.import_module("uvicorn")
    listener = socket.create_server(("127.0.0.1", 0), backlog=1_000)
    print(listener.getsockname()[1], flush=True)  # noqa: T201
    served: Any = importlib.import_module("aegra_api.main").app
    config = uvicorn.Config(
        served, loop="uvloop", http="httptools", access_log=False, log_config=None
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
