"""Code of flows is evaluated in threads: the event loop goes on, and a run can be cancelled meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime import Runtime
from actors._workflow.documents import sandbox
from actors.workflow import FlowRuns, Flows, compile_visualflow, load_flow

ROOT = Path(__file__).parents[3]
PATIENCE_S = 20
CODE = {"code": "1 + 1", "into": "x", "next": "e"}
END = {"end": "${vars.x}"}


def flow(name: str, node: dict[str, Any]) -> Any:
    """Return a graph of this node and an end."""
    nodes = {"a": {**node, "next": "e"}, "e": END}
    return load_flow({"flow": 1, "id": name, "start": "a", "nodes": nodes})


def drawn() -> Any:
    """Return a VisualFlow whose step reads a node of code."""
    nodes = [
        {"id": "a", "type": "set_var", "data": {"pinDefaults": {"name": "x"}}},
        {"id": "c", "type": "code", "data": {"codeBody": "return 2", "outputs": []}},
    ]
    edge = {"source": "c", "sourceHandle": "result", "target": "a", "targetHandle": "value"}
    return compile_visualflow({"id": "code", "entryNode": "a", "nodes": nodes, "edges": [edge]})


class HeldSandbox:
    """A sandbox whose evaluations of code wait, on their threads, until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun, self.released = asyncio.Event(), threading.Event()
        monkeypatch.setattr(sandbox, "evaluate", self.evaluate)

    def evaluate(self, *_: Any, **__: Any) -> Any:
        """Return 2, when it is released."""
        self.loop.call_soon_threadsafe(self.begun.set)
        assert self.released.wait(PATIENCE_S)
        return 2


@pytest.mark.parametrize("kind", ["document", "expression", "drawing"])
async def test_other_runs_end_while_code_is_evaluated(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of a run waits for the end of another run of the same host."""
    expression = {"set": {"x": "${len([1, 2])}"}}
    spec = (
        drawn() if kind == "drawing" else flow("code", CODE if kind == "document" else expression)
    )
    held_sandbox = HeldSandbox(monkeypatch)
    plain = flow("plain", {"set": {"x": "${1 + 1}"}})

    async with Runtime() as runtime, asyncio.timeout(PATIENCE_S):
        await Flows("app", [spec, plain]).register(runtime)
        runs = FlowRuns(runtime, "app")
        run_id = await runs.start("code")
        await held_sandbox.begun.wait()
        neighbour = await runtime.result(await runs.start("plain"))
        held_sandbox.released.set()
        await runtime.result(run_id)

    assert neighbour == 2


async def test_a_run_is_cancelled_while_its_code_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread ends later, and its value is dropped."""
    held_sandbox = HeldSandbox(monkeypatch)

    async with Runtime() as runtime, asyncio.timeout(PATIENCE_S):
        await Flows("app", [flow("code", CODE)]).register(runtime)
        runs = FlowRuns(runtime, "app")
        run_id = await runs.start("code")
        await held_sandbox.begun.wait()
        await runs.cancel(run_id)
        row = await runtime.wait(run_id)
        held_sandbox.released.set()

    assert row.status is RunStatus.CANCELLED


class BusyPool:
    """A pool whose only worker is busy until it is released; it counts evaluations."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.asked, self.released = asyncio.Event(), threading.Event()
        self.left = asyncio.Event()
        self.evaluated: list[str] = []

    def start(self) -> BusyPool:
        """Return the pool."""
        return self

    @contextmanager
    def checkout(self, **_: Any) -> Iterator[BusyPool]:
        """Yield the worker when it is released."""
        self.loop.call_soon_threadsafe(self.asked.set)
        assert self.released.wait(PATIENCE_S)
        try:
            yield self
        finally:
            self.loop.call_soon_threadsafe(self.left.set)

    def feed_run(self, code: str, **_: Any) -> int:
        """Evaluate."""
        self.evaluated.append(code)
        return 2


async def test_code_of_a_cancelled_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for a worker. So a few cancelled runs do not hold up the code of others."""
    pool = BusyPool()
    monkeypatch.setattr(sandbox, "_CODE", pool)

    async with Runtime() as runtime, asyncio.timeout(PATIENCE_S):
        await Flows("app", [flow("code", CODE)]).register(runtime)
        runs = FlowRuns(runtime, "app")
        run_id = await runs.start("code")
        await pool.asked.wait()
        await runs.cancel(run_id)
        await runtime.wait(run_id)
        pool.released.set()
        await pool.left.wait()
        assert pool.evaluated == []
        await runtime.result(await runs.start("code"))

    assert len(pool.evaluated) == 1


def test_a_fork_of_a_process_with_workers_refuses_code() -> None:
    """The workers belong to the parent's threads, which the fork does not have."""
    code = """
import os
from actors._workflow.documents.sandbox import SandboxError, SandboxLimits, evaluate
assert evaluate("1 + 1", {}, SandboxLimits()) == 2
child = os.fork()
if not child:
    try:
        evaluate("1 + 1", {}, SandboxLimits())
    except SandboxError as exc:
        os._exit(7 if "spawn" in str(exc) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert evaluate("1 + 1", {}, SandboxLimits()) == 2
"""
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, cwd=ROOT, timeout=PATIENCE_S * 3, check=False).returncode == 0
