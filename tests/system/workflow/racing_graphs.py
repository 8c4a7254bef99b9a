"""Two processes that answer one wait at once, many times.

`python -m tests.system.workflow.racing_graphs KIND FOLDER TRIES` prints a JSON line for each try:
the outcomes of the two, and how often the next node was called.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.workflow import EffectType, StaleResumeError, WorkflowSpec
from tests.conformance.workflow.stores import Stores, effect_then, end_node

if TYPE_CHECKING:
    from actors.workflow import RunState, StepPlan


def spec_of(folder: Path) -> WorkflowSpec:
    """Return a graph that asks, and then records that it continued."""

    def after(run: RunState, ctx: Any) -> StepPlan:
        calls = os.open(folder / run.run_id, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(calls, b"x")
        os.close(calls)
        return end_node(run, ctx)

    ask = effect_then(EffectType.ASK_USER, {"prompt": "?", "wait_key": "k"}, after="after")
    return WorkflowSpec("graph", "ask", {"ask": ask, "after": after})


def answer(kind: str, folder: Path, run_id: str, *, name: str, ready: int) -> int:
    """Fork a process that answers when `ready` is closed; return its id."""
    child = os.fork()
    if child:
        return child
    code = 2
    try:
        stores, spec = Stores(kind, folder), spec_of(folder)
        runtime = stores.runtime(spec)
        os.read(ready, 1)
        try:
            runtime.resume(spec, run_id, "k", name)
            code = 0
        except StaleResumeError:
            code = 1
    finally:
        os._exit(code)


def main(kind: str, folder: Path, tries: int) -> None:
    """Print a line for each try."""
    spec = spec_of(folder)
    Stores(kind, folder).close()
    for number in range(tries):
        stores = Stores(kind, folder)
        runtime = stores.runtime(spec)
        run_id = runtime.start(spec, run_id=f"r{number}")
        runtime.tick(spec, run_id)
        stores.close()
        ready, go = os.pipe()
        os.set_inheritable(go, False)
        pids = [answer(kind, folder, run_id, name=name, ready=ready) for name in ("a", "b")]
        os.write(go, b"..")
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
        os.close(ready)
        os.close(go)
        calls = (folder / run_id).read_bytes().decode()
        print(json.dumps([codes, calls]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
